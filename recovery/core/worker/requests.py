"""The worker's requests: what must not be lost on the way to the scheduler.

Each is kept until it is answered and sent again after every reconnect; its id makes a repeat harmless.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Union

from recovery.core.copy_messages import CopyFailed, CopyReport
from recovery.core.effects import Log
from recovery.core.ids import RequestId
from recovery.core.messages import CheckpointInvalid, CheckpointReport, Done, Failure, Leave
from recovery.core.worker.effects import Send, SetTimer, WorkerEffect
from recovery.core.worker.timers import WorkerTimer

REPORT_PATIENCE_MS = 5_000
"""How long Done waits for the answers to a rank's last checkpoint reports, each of which waits for the rank's own store. Half of it could
pass on a slow disk, and a report would leave before its row; twice of it only holds up the end of a job whose disk is full."""

Request = Union[CheckpointReport, CheckpointInvalid, CopyReport, CopyFailed, Failure, Done, Leave]


class Requests:
    """Requests that are not answered yet."""

    def __init__(self) -> None:
        """None was made yet."""
        self._unanswered: OrderedDict[RequestId, Request] = OrderedDict()
        """By request id, oldest first. A Done stays until training has stopped: the scheduler's answer does not take it out."""
        self._unstored: set[RequestId] = set()
        """Reports whose rows are not in this worker's own store yet: they leave behind them and not before."""

    @property
    def is_done(self) -> bool:
        """Has this rank finished training in its generation?"""
        return any(isinstance(request, Done) for request in self._unanswered.values())

    def keep(self, request: Request) -> None:
        """Send it after every reconnect from now on; what sends it first is the caller's business."""
        self._unanswered[request.request_id] = request

    def keep_until_stored(self, report: CheckpointReport) -> None:
        """As `keep`, once the row that the report goes behind is written."""
        self.keep(report)
        self._unstored.add(report.request_id)

    def stored(self, request_id: RequestId) -> list[WorkerEffect]:
        """The row of a report is written, and the report has left behind it."""
        self._unstored.discard(request_id)
        return []

    def send(self, request: Request) -> list[WorkerEffect]:
        """Keep it, and send it now."""
        self.keep(request)
        return [Send(request)]

    def send_all(self, now_ms: int) -> list[WorkerEffect]:
        """Send again what is not answered, oldest first. What waits for its row does not leave, and Done, which is the last, waits with it."""
        waits = bool(self._unstored)
        again: list[WorkerEffect] = [
            Send(request)
            for request_id, request in self._unanswered.items()
            if request_id not in self._unstored and not (waits and isinstance(request, Done))
        ]
        if waits and self.is_done:
            again.append(SetTimer(WorkerTimer.REPORTS, now_ms + REPORT_PATIENCE_MS))
        return again

    def answered(self, request_id: RequestId) -> Request | None:
        """Take out the request that the scheduler has answered.

        Returns:
            The request; None for one that was answered before, and for Done: that is sent again to a restarted scheduler, which counts
            the ranks that are done from what it hears.
        """
        request = self._unanswered.get(request_id)
        if request is None or isinstance(request, Done):
            return None
        self._unstored.discard(request_id)
        return self._unanswered.pop(request_id)

    def finish(self, done: Done, now_ms: int) -> list[WorkerEffect]:
        """This rank has finished training: say so, after a bounded wait for the answers to its last checkpoint reports."""
        self.keep(done)
        if self._reports():
            return [SetTimer(WorkerTimer.REPORTS, now_ms + REPORT_PATIENCE_MS)]
        return self.send_done_if_due()

    def send_done_if_due(self) -> list[WorkerEffect]:
        """Say that this rank is done, if it is: once every checkpoint it has saved is known, since nothing counts after the last Done."""
        if self._reports():
            return []
        return [Send(request) for request in self._unanswered.values() if isinstance(request, Done)]

    def forget_done(self) -> None:
        """The generation is over: this rank trains again before it is done."""
        for request in [one for one in self._unanswered.values() if isinstance(one, Done)]:
            del self._unanswered[request.request_id]

    def on_reports_due(self, now_ms: int) -> list[WorkerEffect]:
        """The worker's own store has not written its last checkpoints: report them without their rows, so that the job can end."""
        reports = self._reports()
        if not reports or not self.is_done:
            return []
        steps = ", ".join(str(report.checkpoint.step) for report in reports)
        said = Log(
            "report_not_stored",
            f"step {steps}: this worker's own store has not written it within {REPORT_PATIENCE_MS / 1000:g} s; "
            "reported all the same, so that the job can end",
            warning=True,
        )
        self._unstored.clear()
        return [said, *self.send_all(now_ms)]

    def _reports(self) -> list[CheckpointReport]:
        """Checkpoints that are saved and whose reports are not answered."""
        return [request for request in self._unanswered.values() if isinstance(request, CheckpointReport)]

    def check(self) -> None:
        """Assert what is always true of the requests."""
        done = [request for request in self._unanswered.values() if isinstance(request, Done)]
        assert len(done) <= 1, f"a rank is done once in a generation, not {len(done)} times"
        for request_id, request in self._unanswered.items():
            assert request_id == request.request_id, "a request is kept under its own id"
        assert self._unstored <= self._unanswered.keys(), "what waits for its row is not answered"
