"""What this rank's own work on its newest batches has taken: noted by the main thread, read by the connection's thread."""

from __future__ import annotations

import statistics
from collections import deque

from recovery import clock
from recovery.core.pace import Pace
from recovery.core.policy.stragglers import BATCHES
from recovery.worker.held_up import Watch


class BatchTimes:
    """Of one generation; of a process that trains in several, each begins again."""

    def __init__(self) -> None:
        """No batch was worked on."""
        self.begin()
        self._held_up = Watch()

    def begin(self) -> None:
        """A generation begins: other ranks, other code that is compiled."""
        self._newest: deque[tuple[int, int]] = deque(maxlen=BATCHES)
        self._count = 0
        self._wanted_us = self._drawn_us = self._data_us = self._compute_us = 0

    def wants(self) -> None:
        """The loop asks for the next batch: it has done what it does with the one before."""
        if self._drawn_us and self._wanted_us:
            self._newest.append((self._data_us, self._compute_us))
            self._count += 1
        self._wanted_us = clock.monotonic_us()

    def drawn(self) -> None:
        """It has the batch."""
        self._drawn_us, self._compute_us = clock.monotonic_us(), 0
        self._data_us = self._drawn_us - self._wanted_us

    def passed(self) -> None:
        """A pass over the data is over: the next one's first batch is none of those that are compared. Who does not tell that has one more in a pass."""
        self._wanted_us = self._drawn_us = 0

    def has_gradients(self) -> None:
        """This rank's own gradients of the batch are there. The first time counts: behind that it waits for others, or works on another model's part."""
        if self._drawn_us and not self._compute_us:
            self._compute_us = clock.monotonic_us() - self._drawn_us

    def pace(self, main_thread: int) -> Pace | None:
        """Medians; None: too few batches for that.

        Args:
            main_thread: as `threading.get_native_id` numbers it.
        """
        newest = list(self._newest)
        if len(newest) < BATCHES:
            return None
        return Pace(
            batches=self._count,
            data_us=int(statistics.median(data for data, _ in newest)),
            # Of a batch without a backward pass there is none: nothing is told of such a loop.
            compute_us=int(statistics.median_low(compute for _, compute in newest)),
            held_up=self._held_up.look(main_thread),
        )
