"""The worker's requests: what must not be lost on the way to the scheduler.

Each is kept until it is answered and sent again after every reconnect; its id makes a repeat harmless. A worker whose scheduler was away for
long has more of them than a connection holds back: they go in windows, the next with each answer.

The last one of a process that leaves by its own decision is a `Failure` or a `Leave`: Departure sends it, and knows the error that it ends with.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Union

from recovery.core.copy_messages import CopyFailed, CopyReport, UploadReport
from recovery.core.effects import Exit, Log
from recovery.core.ids import RequestId
from recovery.core.messages import (
    Admitted,
    CheckpointInvalid,
    CheckpointReport,
    Done,
    Failure,
    JobEnded,
    Leave,
    NotSaved,
)
from recovery.core.policy.backoff import SHUTDOWN_GRACE_MS
from recovery.core.worker.effects import Send, SetTimer, WorkerEffect
from recovery.core.worker.stimuli import TrainingRaised, WorkerTimer
from recovery.errors.base import one_line

REPORT_PATIENCE_MS = 5_000
"""How long Done waits for the answers to a rank's last checkpoint reports, each of which waits for the rank's own store. Half of it could
pass on a slow disk, and a report would leave before its row; twice of it only holds up the end of a job whose disk is full."""

IN_FLIGHT_MAX = 64
"""Requests that go at once on a new connection. A quarter of what one holds back before it is closed (`transport/outbox.py`), so that what else
is said there still fits; twice of it would be answered no sooner, since the scheduler writes the answers of many in one transaction."""

STOPPED = "STOPPED"
"""What a process says that a signal has ended; so does one whose rank was handed over."""

Request = Union[
    CheckpointReport, CheckpointInvalid, NotSaved, CopyReport, CopyFailed, UploadReport, Failure, Done, Leave
]


class Requests:
    """Requests that are not answered yet."""

    def __init__(self) -> None:
        """None was made yet."""
        self._unanswered: OrderedDict[RequestId, Request] = OrderedDict()
        """By request id, oldest first, all but a Done."""
        self._done: Done | None = None
        """Stays until training has stopped: the scheduler's answer does not take it out."""
        self._unstored: set[RequestId] = set()
        """Reports whose rows are not in this worker's own store yet: they leave behind them and not before."""
        self._held_back: OrderedDict[RequestId, Request] = OrderedDict()
        """Those of `_unanswered` that go on this connection when others are answered, oldest first."""

    @property
    def is_done(self) -> bool:
        """Has this rank finished training in its generation?"""
        return self._done is not None

    @property
    def done_step(self) -> int:
        """Behind which it has; 0: it has not, or trains no steps."""
        return self._done.step if self._done is not None else 0

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
        """Send again what is not answered, oldest first; what may wait, in windows. Behind all of it, this rank's Done.

        What waits for its row does not leave, and Done waits with it, for a bounded time.
        """
        here = [request for request in self._unanswered.values() if request.request_id not in self._unstored]
        may_wait = [(request.request_id, request) for request in here if _may_wait(request)]
        self._held_back = OrderedDict(may_wait[IN_FLIGHT_MAX:])
        now = [request for request in here if request.request_id not in self._held_back]
        # Nothing counts after a last message.
        last = [request for request in now if isinstance(request, (Failure, Leave))]
        sent: list[WorkerEffect] = [
            Send(request)
            for request in (
                *(request for request in now if request not in last),
                *self._done_if_last(),
                *last,
            )
        ]
        if self._unstored and self.is_done:
            sent.append(SetTimer(WorkerTimer.REPORTS, now_ms + REPORT_PATIENCE_MS))
        return sent

    def _done_if_last(self) -> list[Done]:
        """Nothing is left that has to leave before it."""
        return [self._done] if self._done is not None and not self._held_back and not self._unstored else []

    def answered(self, request_id: RequestId) -> Request | None:
        """Take out the request that the scheduler has answered.

        None for one that was answered before, and for Done: that is sent again to a restarted scheduler, which counts the ranks
        that are done from what it hears.
        """
        self._unstored.discard(request_id)
        self._held_back.pop(request_id, None)
        return self._unanswered.pop(request_id, None)

    def send_next(self) -> list[WorkerEffect]:
        """One was answered: the next that is held back goes, and behind the last one what waited for all of them."""
        if not self._held_back:
            return []
        _, request = self._held_back.popitem(last=False)
        return [Send(request), *map(Send, self._done_if_last())]

    def finish(self, done: Done, now_ms: int) -> list[WorkerEffect]:
        """This rank has finished training: say so, after a bounded wait for the answers to its last checkpoint reports."""
        self._done = done
        if self._reports():
            return [SetTimer(WorkerTimer.REPORTS, now_ms + REPORT_PATIENCE_MS)]
        return self.send_done_if_due()

    def send_done_if_due(self) -> list[WorkerEffect]:
        """Say that this rank is done, if it is: once every checkpoint it has saved is known, since nothing counts after the last Done."""
        if self._done is None or self._reports():
            return []
        return [Send(self._done)]

    def forget_done(self) -> None:
        """The generation is over: this rank trains again before it is done."""
        self._done = None

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
        assert self._held_back.keys() <= self._unanswered.keys(), "what is answered is not held back"
        for request_id, request in self._unanswered.items():
            assert request_id == request.request_id, "a request is kept under its own id"
        assert self._unstored <= self._unanswered.keys(), "what waits for its row is not answered"


def _may_wait(request: Request) -> bool:
    """Is there nothing that waits for it? A plan does for what it must not go back to, and the end of a process for its last message."""
    if isinstance(request, CopyFailed):
        return not request.generation
    return isinstance(request, (CheckpointReport, NotSaved, CopyReport, UploadReport))


class Departure:
    """Why one process leaves, once it has decided to."""

    def __init__(self, requests: Requests) -> None:
        """Nothing is decided."""
        self._requests = requests
        self._code = ""
        """The error that the process ends with, a code of recovery.errors; empty: it has decided nothing. Set in LEAVING."""
        self._reason = ""
        """The sentence that goes with `_code`. Set in LEAVING."""
        self._begun = self._has_ended = False
        self.ended_in_order = False
        """The process was given an end without an error: its script may go on for as long as it likes. Set in LEAVING."""

    def begin(
        self, last: Failure | Leave, code: str, reason: str, now_ms: int, *, admitted: bool
    ) -> list[WorkerEffect]:
        """Leave once the scheduler has taken this last message, or the grace period is over. Without an admission there is nobody to leave.

        The scheduler takes nothing from this process after its last message.
        """
        self._code, self._reason = code, reason
        if not admitted:
            return [Exit(code, reason)]
        sent = self._requests.send(last)
        if self._begun:
            # One more reason puts off no end: whoever asked for it first waits, and kills a process that takes too long.
            return sent
        self._begun = True
        return [*sent, SetTimer(WorkerTimer.SHUTDOWN, now_ms + SHUTDOWN_GRACE_MS)]

    def on_due(self) -> list[WorkerEffect]:
        """The grace period is over: it ends."""
        return [] if self._has_ended else [*self.not_told(), self.exit()]

    def not_told(self) -> list[Log]:
        """Where it leaves, and its last message was not taken: the scheduler does not know why."""
        if not self._begun or self._has_ended:
            return []
        why = f"{self._code or 'no error'}: {self._reason}"
        text = f"the scheduler has not taken this process's last message, so why it ends is not in the event log ({why})"
        return [Log("last_message_not_taken", text, warning=True)]

    def exit(self, code: str = "", reason: str = "") -> Exit:
        """End the process. What it has decided itself goes before what somebody else gives as the reason."""
        code, self._has_ended = self._code or code, True
        self.ended_in_order = self.ended_in_order or not code
        return Exit(code, self._reason or reason)


def failure_of(raised: TrainingRaised) -> Failure:
    """The message about an exception of the user's own code, with texts that fit."""
    return Failure(
        request_id=raised.request_id,
        generation=raised.generation,
        step=raised.step,
        error=one_line(raised.error)[:1024],
        traceback=raised.traceback[-16_384:],
    )


def leave_of(request_id: RequestId, reason: str) -> Leave:
    """The message of a process that goes on purpose, with a text that fits."""
    return Leave(request_id=request_id, reason=reason[:1024])


def nothing_to_do(admitted: Admitted | None, ended: JobEnded) -> list[Log]:
    """Say so if the job has finished without this process: its script goes on, and has trained nothing."""
    if ended.outcome.code or (admitted is not None and not admitted.standby):
        return []
    text = (
        f"this process came when the job had finished ({ended.reason}). To train again, start the job again"
    )
    if admitted is not None:
        text = f"the job has finished ({ended.reason}) and no rank was lost: this standby has trained nothing"
    return [Log("nothing_to_do", text, warning=True)]
