"""How a process leaves the job by its own decision: its last message, and the error it ends with."""

from __future__ import annotations

from recovery.core.effects import Exit, Log
from recovery.core.ids import RequestId
from recovery.core.messages import Admitted, Failure, JobEnded, Leave
from recovery.core.worker.effects import SetTimer, WorkerEffect
from recovery.core.worker.requests import Requests
from recovery.core.worker.stimuli import TrainingRaised, WorkerTimer

SHUTDOWN_GRACE_MS = 2_000
"""How long a leaving process waits for the scheduler to take its last message."""


class Departure:
    """Why one process leaves, once it has decided to."""

    def __init__(self, requests: Requests) -> None:
        """Nothing is decided.

        Args:
            requests: where the last message is kept until it is answered.
        """
        self._requests = requests
        self._code = ""
        """The error that the process ends with, a code of recovery.errors; empty: it has decided nothing. Set in LEAVING."""
        self._reason = ""
        """The sentence that goes with `_code`. Set in LEAVING."""
        self._ended_in_order = False
        """The process was given an end without an error. Set in LEAVING."""

    @property
    def ended_in_order(self) -> bool:
        """Was the process given an end without an error? Its script may go on for as long as it likes."""
        return self._ended_in_order

    def begin(
        self, last: Failure | Leave, code: str, reason: str, now_ms: int, *, admitted: bool
    ) -> list[WorkerEffect]:
        """Leave once the scheduler has taken this last message, or the grace period is over.

        Args:
            last: why it goes; the scheduler takes nothing from it afterwards.
            code: of the error that the process ends with.
            reason: for people.
            now_ms: on the monotonic clock.
            admitted: False: the scheduler does not know this process, so there is nobody to leave.
        """
        self._code, self._reason = code, reason
        if not admitted:
            return [Exit(code, reason)]
        return [*self._requests.send(last), SetTimer(WorkerTimer.SHUTDOWN, now_ms + SHUTDOWN_GRACE_MS)]

    def exit(self, code: str = "", reason: str = "") -> Exit:
        """End the process. What it has decided itself goes before what somebody else gives as the reason."""
        code = self._code or code
        self._ended_in_order = self._ended_in_order or not code
        return Exit(code, self._reason or reason)


def failure_of(raised: TrainingRaised) -> Failure:
    """The message about an exception of the user's own code, with texts that fit."""
    return Failure(
        request_id=raised.request_id,
        generation=raised.generation,
        step=raised.step,
        error=raised.error[:1024],
        traceback=raised.traceback[-16_384:],
    )


def leave_of(request_id: RequestId, reason: str) -> Leave:
    """The message of a process that goes on purpose, with a text that fits."""
    return Leave(request_id=request_id, reason=reason[:1024])


def nothing_to_do(admitted: Admitted | None, ended: JobEnded) -> list[Log]:
    """Say so if the job has finished without this process: its script goes on, and has trained nothing.

    Args:
        admitted: as it was let in; None: it was not.
        ended: how the job ended.
    """
    if ended.outcome.code or (admitted is not None and not admitted.standby):
        return []
    text = (
        f"this process came when the job had finished ({ended.reason}). To train again, start the job again"
    )
    if admitted is not None:
        text = f"the job has finished ({ended.reason}) and no rank was lost: this standby has trained nothing"
    return [Log("nothing_to_do", text, warning=True)]
