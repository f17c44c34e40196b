"""Virtual time: what happens when, each process's own idea of it, and a fingerprint of all that happened."""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable

LOG_LINES = 50
"""What a failure shows. Heartbeats are not in it: they would drown the rest."""


class Clock:
    """The queue of what will happen. All randomness of a simulation comes from its seed, one stream per subsystem.

    A draw more in one subsystem does not shift the others: a fault taken away leaves the network's delays as they were.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.now, self.events = seed, 0, 0
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.seen: Counter[str] = Counter()
        """How often something worth reaching was reached."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._streams: dict[str, random.Random] = {}
        self._trace = hashlib.sha256()

    def draw(self, stream: str) -> random.Random:
        """The random numbers of one subsystem."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = random.Random(f"{self.seed}/{stream}")
        return found

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Call `what` after a delay."""
        self._numbers += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._numbers, what))

    def soon(self, stream: str, low: int, high: int, what: Callable[[], None]) -> None:
        """Call `what` after a random delay."""
        self.later(self.draw(stream).randint(low, high), what)

    def run(self, until_ms: int, done: Callable[[], bool]) -> None:
        """Let time pass, until something is so or the time is over."""
        while self._queue and self._queue[0][0] <= until_ms and not done():
            self.now, _, what = heapq.heappop(self._queue)
            self.events += 1
            what()
        self.now = self.now if done() else until_ms

    def say(self, text: str) -> None:
        """One line for whoever reads a failure."""
        self.log.append(f"{self.now / 1000:>9.3f} s  {text}")
        self.trace(text.encode())

    def trace(self, what: bytes) -> None:
        """Add to the fingerprint."""
        self._trace.update(b"%d " % self.now + what)

    @property
    def fingerprint(self) -> str:
        """The same seed gives the same, on every machine and in every process."""
        return self._trace.hexdigest()


class OwnClock:
    """A process's monotonic clock: begins anywhere, runs up to one per cent fast or slow, and means nothing to anybody else."""

    def __init__(self, clock: Clock, drift_max: float) -> None:
        draw = clock.draw("clocks")
        self._clock, self._born = clock, clock.now
        self._offset = draw.randrange(10**9)
        self._rate = 1 + draw.uniform(-drift_max, drift_max)

    def read(self) -> int:
        """Its time in milliseconds."""
        return self._offset + int((self._clock.now - self._born) * self._rate)

    def until(self, at_ms: int) -> int:
        """How long everybody waits until it shows `at_ms`."""
        return max(0, math.ceil((at_ms - self.read()) / self._rate))
