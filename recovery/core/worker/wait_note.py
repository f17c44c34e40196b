"""Every wait says what it waits for: after 5 s, then every 30 s."""

from __future__ import annotations

from recovery.core.effects import Log
from recovery.core.worker.effects import SetTimer, WorkerEffect
from recovery.core.worker.stimuli import WorkerTimer

WAIT_NOTE_FIRST_MS = 5_000
"""After how long a wait says for the first time what it waits for."""

WAIT_NOTE_MS = 30_000
"""How often it says so from then on."""


class WaitNote:
    """The one wait of a process, if it waits."""

    def __init__(self) -> None:
        """Nothing is waited for."""
        self._waiting_for = ""
        """What is waited for, for people; empty: nothing."""
        self._since_ms = 0
        """When that wait began, on the monotonic clock. Means nothing while nothing is waited for."""
        self._obstacle = ""
        """Why it lasts, for people; empty: not known."""

    def begin(self, waiting_for: str, now_ms: int) -> list[WorkerEffect]:
        """A wait begins; it replaces the one before."""
        self._waiting_for, self._since_ms, self._obstacle = waiting_for, now_ms, ""
        return [SetTimer(WorkerTimer.WAIT_NOTE, now_ms + WAIT_NOTE_FIRST_MS)]

    def explain(self, obstacle: str) -> None:
        """Why what is waited for has not come yet, and what to look at."""
        self._obstacle = obstacle

    def end(self) -> None:
        """Nothing is waited for any more."""
        self._waiting_for = ""

    def on_due(self, now_ms: int) -> list[WorkerEffect]:
        """Say what is waited for, if anything still is."""
        if not self._waiting_for:
            return []
        seconds = (now_ms - self._since_ms) / 1000
        why = f": {self._obstacle}" if self._obstacle else ""
        return [
            Log("waiting", f"for {self._waiting_for}, {seconds:.0f} s so far{why}"),
            SetTimer(WorkerTimer.WAIT_NOTE, now_ms + WAIT_NOTE_MS),
        ]
