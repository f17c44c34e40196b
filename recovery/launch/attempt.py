"""One start of a process, over."""

from __future__ import annotations

import errno
import signal
from typing import NamedTuple

import msgspec

from recovery import clock
from recovery.core.messages import ProcessIdentity
from recovery.errors import ROWS, Cause
from recovery.launch.restart_policy import SHORT_ATTEMPT_MS, Decision, Next

_PASSES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
"""A start that fails for want of these may succeed later."""
_JOB_IS_OVER = ("JOB_FAILED", "NO_COMMON_CHECKPOINT", "WAIT_TIMEOUT")
"""A process that ends so says it of the job, whether it held a rank or not."""


class Outcome(NamedTuple):
    """How a process is over for good."""

    next: Next
    """All but `RELAUNCH`."""
    status: int
    """Of its last attempt: exit code; negative: the signal that killed it."""
    how: str
    """The same for people."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a process, over."""

    number: int
    """Which start it was, 1-based."""
    pid: int
    """0: it could not be started."""
    status: int
    """Exit code; negative: the signal that killed it."""
    cause: Cause | None
    """What the end says of the next start; None: nothing, as that of a script's own."""
    how: str
    """For people."""
    begun_ms: int
    ended_ms: int
    by_engine: bool = False
    """The engine has ended it with this exit code. With the same one a script may end by itself."""
    heard_end: bool = False
    """It had heard that its job has finished."""
    process: ProcessIdentity | None = None
    """Which process it was; None: none, or the system does not say."""

    @property
    def begun(self) -> bool:
        """Was there a process that ran its program, and could?"""
        return self.pid != 0 and not self.says("NO_THREAD")

    @property
    def asked_to_end(self) -> bool:
        """Did a SIGTERM end it that its launcher has not sent? Whatever has sent it, that is no failure of the process."""
        return self.status == -signal.SIGTERM or (self.by_engine and self.status == 128 + signal.SIGTERM)

    @property
    def lasted_ms(self) -> int:
        """From its start to its end."""
        return self.ended_ms - self.begun_ms

    def says(self, *codes: str) -> bool:
        """Did the engine end it with one of these errors? A script that ends with the same number says nothing."""
        return self.cause is not None and any(self.status == ROWS[code].exit_code for code in codes)

    @property
    def says_job_is_over(self) -> bool:
        """Did the engine end it because the job is over?"""
        return self.says(*_JOB_IS_OVER)

    @property
    def says_why(self) -> bool:
        """Does its exit code say for good why this very process has ended?"""
        return self.cause is Cause.PERMANENT and self.begun and not self.says_job_is_over

    def as_decided(self, decision: Decision) -> Attempt:
        """The same; where the job ends with an error of its own, since it was asked to end too often, that is how it has ended."""
        if not decision.code:
            return self
        status = ROWS[decision.code].exit_code
        return msgspec.structs.replace(
            self, status=status, cause=None, how="ended by SIGTERM again and again"
        )

    @classmethod
    def refused(cls, number: int, begun_ms: int, error: OSError | MemoryError) -> Attempt:
        """The system has refused to start it, or this launcher itself has no memory left to do so."""
        number_of_it, said = errno.ENOMEM, "this launcher has no memory left"
        if isinstance(error, OSError):
            number_of_it, said = error.errno or 0, str(error.strerror)
        cause = Cause.TEMPORARY if number_of_it in _PASSES else ROWS["LAUNCH_FAILED"].cause
        return cls.never_begun(number, begun_ms, cause, said)

    @classmethod
    def never_begun(cls, number: int, begun_ms: int, cause: Cause, reason: str) -> Attempt:
        """It could not be started."""
        return cls(
            number=number,
            pid=0,
            status=ROWS["LAUNCH_FAILED"].exit_code,
            cause=cause,
            how=f"could not be started ({reason})",
            begun_ms=begun_ms,
            ended_ms=clock.monotonic_ms(),
        )


class History:
    """What the attempts of one process have come to so far."""

    def __init__(self) -> None:
        """There is none yet."""
        self.short_attempts = self.idle_ends = 0
        """In a row; the second: that SIGTERM has ended, without a new step of the job."""
        self._reached = (0, 0)
        """The job's newest step that was seen, as `KnownJob.reached`."""
        self.relaunched_ms: list[int] = []
        """When it was started again, each time behind an attempt that had begun, and failed."""
        self.is_news = True
        """The last one had begun, or was the first in a row that had not."""
        self._uses_restart = False
        """Whoever starts it again behind the last one uses up a restart: it had begun, and failed."""
        self._unbegun_since_ms: int | None = None

    def note(
        self, attempt: Attempt, *, handed_over: bool = False, reached: tuple[int, int] | None = None
    ) -> None:
        """Count an attempt that is over.

        Args:
            attempt: the newest one.
            handed_over: it has left as planned.
            reached: as `KnownJob.reached`; None: nobody knows. Then one that was short is taken for one without a step.
        """
        self._uses_restart = attempt.begun and not (handed_over or attempt.asked_to_end)
        self.is_news = attempt.begun or self._unbegun_since_ms is None
        is_short = attempt.lasted_ms < SHORT_ATTEMPT_MS and not handed_over
        self.short_attempts = self.short_attempts + 1 if is_short else 0
        is_idle = is_short if reached is None else not (reached[1] and reached > self._reached)
        self._reached = max(self._reached, reached or (0, 0))
        self.idle_ends = self.idle_ends + 1 if is_idle and attempt.asked_to_end and not handed_over else 0
        if attempt.begun:
            self._unbegun_since_ms = None
        elif self._unbegun_since_ms is None:
            self._unbegun_since_ms = attempt.begun_ms

    @property
    def unbegun_ms(self) -> int | None:
        """For how long none has begun; None: the last one had."""
        return None if self._unbegun_since_ms is None else clock.monotonic_ms() - self._unbegun_since_ms

    def note_relaunch(self) -> None:
        """It is started again behind the attempt that was noted last."""
        if self._uses_restart:
            self.relaunched_ms.append(clock.monotonic_ms())
