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


class HangWatch:
    """Of this process. Nothing of it is stored: those that live say again what they have seen."""

    def __init__(self) -> None:
        """No rank has spoken."""
        self.longest_ms: dict[Phase, int] = {}
        """Of each phase, what the longest took that any rank has come through."""
        self.suspicion: Suspicion | None = None
        """The one that is open; None: there is none."""
        self._looked_ms = 0

    def learn(self, longest_ms: Mapping[Phase, int]) -> None:
        """A rank has come through these."""
        for phase, lasted_ms in longest_ms.items():
            self.longest_ms[phase] = max(lasted_ms, self.longest_ms.get(phase, 0))

    def may_look(self, now_ms: int) -> bool:
        """Was the last look at all ranks long enough ago? Then this is the next one."""
        if now_ms - self._looked_ms < _LOOKS_MS:
            return False
        self._looked_ms = now_ms
        return True
