"""What the scheduler knows of how long each part of a step takes, and of whom it suspects (MS_STEP_TIMEOUT=auto)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from recovery.core.ids import Generation
from recovery.core.phases import Phase
from recovery.core.policy.hang_limits import Suspect

_LOOKS_MS = 500
"""Between two looks at all ranks: when one hangs all others wait, and each says so every second."""


class Suspicion(NamedTuple):
    """One that was told."""

    generation: Generation
    suspect: Suspect
    told_ms: int
    """When, on the monotonic clock."""


class HangWatch:
    """Of this process. Nothing of it is stored: those that live say again what they have seen."""

    def __init__(self) -> None:
        """No rank has spoken."""
        self.longest_ms: dict[Phase, int] = {}
        """Of each phase, what the longest took that any rank has come through."""
        self.suspicion: Suspicion | None = None
        """The one that is open; None: there is none."""
        self._looked_ms = self._fresh_start_ms = 0
        self._verdict_at: int | None = None

    def learn(self, longest_ms: Mapping[Phase, int], fresh_start_ms: int = 0) -> None:
        """A rank has come through these."""
        self._fresh_start_ms = max(fresh_start_ms, self._fresh_start_ms)
        for phase, lasted_ms in longest_ms.items():
            least_ms = self._fresh_start_ms if phase is Phase.START else 0
            self.longest_ms[phase] = max(lasted_ms, self.longest_ms.get(phase, 0), least_ms)

    def raise_limits(self, suspect: Suspect) -> None:
        """There was a verdict: it counts as if it had been seen to its end. At the same step again that holds for every phase: it may be any that is slow there."""
        is_again, self._verdict_at = suspect.step == self._verdict_at, suspect.step
        phases = self.longest_ms if is_again else (suspect.limit_of,)
        self.learn(dict.fromkeys(phases, suspect.lasting_ms))

    def may_look(self, now_ms: int) -> bool:
        """Was the last look at all ranks long enough ago? Then this is the next one."""
        if now_ms - self._looked_ms < _LOOKS_MS:
            return False
        self._looked_ms = now_ms
        return True
