"""The step at which the main thread is to stop: whether it has passed it is decided under one lock."""

from __future__ import annotations

import threading

_NOWHERE = -1
"""No step: training that begins stands behind step 0."""


class StopPoint:
    """One per process. The main thread asks at the end of each step, so what it does there is an addition and a comparison.

    Whoever wants it to stop speaks through TrainingControl, which wakes a main thread that waits.
    """

    def __init__(self) -> None:
        """Nobody asks, and nothing is passed."""
        self._lock = threading.Lock()
        """Guards what is below. A thread that holds it takes no other."""
        self._generation = 0
        self._passed = 0
        """The main thread has left this step behind it, in this generation: it is in the next one."""
        self._stop = _NOWHERE
        """Where it is asked to stop."""
        self._saves = False
        """It is to save there, before it waits."""
        self._held = _NOWHERE
        """Where it stops by itself: its script has asked for the end of training."""
        self.is_over = False
        """Its loop has come to its end: it comes to no further step."""
        self._end = _NOWHERE
        """Where its training ends before its last epoch does."""
        self.leave_by_ms: int | None = None
        """By when this process is to have ended, on the monotonic clock; None: it was not asked to."""

    def begin(self, generation: int, step: int, end: int = 0) -> None:
        """Training begins behind this step, and ends at `end`; 0: behind its last epoch."""
        with self._lock:
            self._generation, self._passed, self._end = generation, step, end or _NOWHERE
            self._stop = self._held = _NOWHERE
            self.is_over = False

    def passes(self, step: int) -> bool:
        """Does the main thread leave this step behind it? False: it stops here."""
        with self._lock:
            if step in (self._stop, self._held, self._end):
                return False
            self._passed = step
            return True

    @property
    def saves(self) -> bool:
        """Is it to save where it is asked to stop?"""
        return self._saves

    @property
    def end(self) -> int:
        """The step at which training ends; 0: behind its last epoch."""
        return max(0, self._end)

    def stop_at(self, generation: int, step: int, *, ends_training: bool = False) -> tuple[int, bool]:
        """Ask for a stop at the end of a step, instead of one that was asked for before.

        Args:
            generation: the step's.
            step: 0: only look.
            ends_training: nothing is saved there, and where the main thread stops by itself it goes on to that step.

        Returns:
            What is passed, and whether it will stop there.
        """
        with self._lock:
            if generation != self._generation:
                return 0, False
            if not step:
                return self._passed, False
            stops = step > self._passed
            self._stop, self._saves = step if stops else _NOWHERE, not ends_training
            if ends_training and stops:
                self._held = _NOWHERE
            return self._passed, stops

    def hold(self, step: int) -> None:
        """Stop at the end of this step, in which the main thread is, unless another script's wish has named a later one already."""
        with self._lock:
            if self._stop == _NOWHERE or self._saves:
                self._held = step

    def end_at(self, generation: int, step: int) -> int:
        """Let training end at this step. Gives what is passed where that is too late, else 0."""
        with self._lock:
            if generation != self._generation or step == self._end:
                return 0
            if step <= self._passed:
                return self._passed
            self._end, self._held = step, _NOWHERE
            return 0

    def leave_loop(self, step: int) -> None:
        """The main thread's loop has come to its end behind this step, at which it may have been asked to stop."""
        with self._lock:
            self._passed, self.is_over = step, True

    def enter_loop(self) -> None:
        """The main thread comes to steps, again."""
        self.is_over = False

    def forget(self) -> None:
        """It is asked to stop nowhere."""
        with self._lock:
            self._stop, self.leave_by_ms = _NOWHERE, None
