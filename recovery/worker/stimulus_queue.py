"""One stimulus after the other goes through the machine, and what it asks for is carried out whole before the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from recovery.core.worker.effects import WorkerEffect
from recovery.core.worker.stimuli import WorkerStimulus


class StimulusQueue:
    """The way into one worker's machine. Everything here runs in the connection's thread."""

    def __init__(
        self,
        handle: Callable[[WorkerStimulus], Iterable[WorkerEffect]],
        carry_out: Callable[[WorkerEffect], None],
        break_off: Callable[[WorkerStimulus, Exception], None],
    ) -> None:
        """Nothing has come.

        Args:
            handle: what the machine makes of a stimulus.
            carry_out: does one effect. A stimulus that it delivers itself waits until all effects of the present one are done.
            break_off: called at the first exception of either: what is half changed takes nothing more.
        """
        self._handle, self._carry_out, self._break_off = handle, carry_out, break_off
        self._waiting: deque[WorkerStimulus] = deque()
        self._takes = self._is_over = False

    def deliver(self, stimulus: WorkerStimulus) -> None:
        """Let the machine take it, behind what has come before."""
        self._waiting.append(stimulus)
        if self._takes:
            return
        self._takes = True
        while self._waiting and not self._is_over:
            self._take(self._waiting.popleft())
        self._takes = False

    def _take(self, stimulus: WorkerStimulus) -> None:
        try:
            for effect in self._handle(stimulus):
                self._carry_out(effect)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends of it
            self._is_over = True
            self._break_off(stimulus, error)
