"""The step at which the main thread is asked to stop: whether it has passed it is decided under one lock."""

from __future__ import annotations

import threading

_NOWHERE = -1
"""No step: training that begins stands behind step 0."""


class StopPoint:
    """One per process. The main thread asks at the end of each step, so what it does there is an addition and a comparison."""

    def __init__(self) -> None:
        """Nobody asks, and nothing is passed."""
        self._lock = threading.Lock()
        """Guards what is below. A thread that holds it takes no other."""
        self._generation = 0
        self._passed = 0
        """The main thread has left this step behind it, in this generation: it is in the next one."""
        self._stop = _NOWHERE
        """Where it is to stop."""

    def begin(self, generation: int, step: int) -> None:
        """Training begins behind this step."""
        with self._lock:
            self._generation, self._passed, self._stop = generation, step, _NOWHERE

    def passes(self, step: int) -> bool:
        """Does the main thread leave this step behind it? False: it stops here."""
        with self._lock:
            if step == self._stop:
                return False
            self._passed = step
            return True

    def stop_at(self, generation: int, step: int) -> tuple[int, bool]:
        """Ask for a stop at the end of a step, instead of one that was asked for before.

        Args:
            generation: the step's.
            step: 0: only look.

        Returns:
            What is passed, and whether it will stop there.
        """
        with self._lock:
            if generation != self._generation:
                return 0, False
            if not step:
                return self._passed, False
            stops = step > self._passed
            self._stop = step if stops else _NOWHERE
            return self._passed, stops

    def forget(self) -> None:
        """It stops nowhere."""
        with self._lock:
            self._stop = _NOWHERE
