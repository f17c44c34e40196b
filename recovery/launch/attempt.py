"""One start of a process, over."""

from __future__ import annotations

import msgspec

from recovery import clock
from recovery.core.messages import ProcessIdentity
from recovery.errors import ROWS, Cause


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
    heard_end: bool = False
    """It had heard that its job has finished."""
    process: ProcessIdentity | None = None
    """Which process it was; None: none, or the system does not say."""

    @property
    def lasted_ms(self) -> int:
        """From its start to its end."""
        return self.ended_ms - self.begun_ms

    def says(self, *codes: str) -> bool:
        """Did the engine end it with one of these errors? A script that ends with the same number says nothing."""
        return self.cause is not None and any(self.status == ROWS[code].exit_code for code in codes)

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
