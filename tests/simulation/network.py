"""Connections that carry the real bytes: delayed, stalled, cut with or without anybody noticing. In order, as TCP is.

A stream neither loses nor doubles a message: what a lossy network does to it is delay, stall and the end of the connection.
Repeats come from the nodes themselves, which tell unanswered requests again; `Fault.REPEAT` makes one at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recovery.core import messages as m
from recovery.core.ids import ConnectionId
from recovery.transport import codec
from tests.simulation.clock import Clock

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.scheduler import SchedulerProcess

UP, DOWN = "up", "down"


class Network:
    """What is between the nodes and the scheduler."""

    def __init__(self, clock: Clock, *, delay_ms: tuple[int, int], stall_share: float) -> None:
        """Choose how slow it is.

        Args:
            clock: the simulation's.
            delay_ms: of a message, least and most.
            stall_share: how many messages wait a hundred times longer, as after a lost packet.
        """
        self.clock, self.stall_share = clock, stall_share
        self._delay_ms = delay_ms
        self._blocked_until: dict[tuple[str, str], int] = {}
        self._connections = 0

    def delay(self) -> int:
        """Of the next message."""
        draw = self.clock.draw("network")
        delay = draw.randint(*self._delay_ms)
        return delay * 100 if self.stall_share and draw.random() < self.stall_share else delay

    def partition(self, name: str, ways: tuple[str, ...], for_ms: int) -> None:
        """Nothing of a node passes this way for a while; afterwards what waited arrives."""
        for way in ways:
            until = max(self._blocked_until.get((name, way), 0), self.clock.now + for_ms)
            self._blocked_until[name, way] = until

    def passes_at(self, name: str, way: str, at_ms: int) -> int:
        """When something that would arrive at `at_ms` does."""
        return max(at_ms, self._blocked_until.get((name, way), 0))

    def is_blocked(self, name: str) -> bool:
        """Would a dial stay without an answer?"""
        return any(self._blocked_until.get((name, way), 0) > self.clock.now for way in (UP, DOWN))

    def restore(self) -> None:
        """Everything passes from now on."""
        self._blocked_until.clear()

    def connect(self, near: Process, far: SchedulerProcess) -> Wire:
        """A connection that was accepted."""
        return Wire(self, self.next_number(), near, far)

    def next_number(self) -> ConnectionId:
        """Of a connection."""
        self._connections += 1
        return ConnectionId(self._connections)


class Wire:
    """One connection. Each direction keeps its order; either end may learn of the end later than the other."""

    def __init__(self, network: Network, number: ConnectionId, near: Process, far: SchedulerProcess) -> None:
        self.network, self.number, self.near, self.far = network, number, near, far
        self.clock = network.clock
        self.broken = self.far_knows = False
        self._last = {UP: 0, DOWN: 0}

    def send(self, way: str, what: Any) -> None:
        """Deliver in order, unless the connection breaks before."""
        at = self.network.passes_at(self.near.name, way, self.clock.now + self.network.delay())
        at = self._last[way] = max(self._last[way], at)
        self.clock.later(at - self.clock.now, lambda: None if self.broken else what())

    def up(self, message: m.FromNode) -> None:
        """From the node."""
        frame = codec.encode(message)
        self.clock.trace(frame)
        self.send(UP, lambda: self._arrives_up(frame))

    def _arrives_up(self, frame: bytes) -> None:
        limit = self.near.world.rules.frame_bytes_max
        self.far.hear(self, codec.decode_from_node(frame, frame_bytes_max=limit))

    def down(self, message: m.FromScheduler) -> None:
        """From the scheduler."""
        frame = codec.encode(message)
        self.clock.trace(frame)
        self.send(DOWN, lambda: self.near.hear(self, codec.decode_from_scheduler(frame, peer="scheduler")))

    def cut(self, reason: str) -> None:
        """Break it now; what is on the way is lost, and both ends learn of it soon, or when a partition ends."""
        if self.broken:
            return
        self.broken = True
        for way, end in ((UP, self.far), (DOWN, self.near)):
            at = self.clock.now + self.clock.draw("network").randint(0, 100)
            at = self.network.passes_at(self.near.name, way, at)
            self.clock.later(at - self.clock.now, lambda end=end: end.disconnected(self, reason))  # type: ignore[misc]  # bound per turn

    def vanish(self) -> None:
        """Break it and tell nobody: a router forgot it. Each end finds out by its own deadline."""
        self.broken = True
