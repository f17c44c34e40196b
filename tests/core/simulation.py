"""A scheduler and its workers on a virtual clock: machines of the core, everything around them made up and breakable.

Messages take time and are lost with their connection, writes take time and their answers wait for them, a killed scheduler
comes back from what was durable, main threads hang, files rot. All randomness comes from one seed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from recovery.core import messages as m
from recovery.core.cluster import Cluster, new_job, next_life
from recovery.core.effects import Answer, CloseConnection, Exit, Persist, SchedulerEffect, Send, SetTimer
from recovery.core.ids import ConnectionId, Generation, ResumeToken, RunId
from recovery.core.records import (
    CheckpointRecord,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    NodeRecord,
    NodeState,
    Record,
    RunRecord,
)
from recovery.core.rules import Rules
from recovery.core.stimuli import ConnectionLost, MessageReceived, SchedulerStimulus, TimerFired

RULES = Rules(
    worker_count=3,
    lease_ms=3_000,
    rejoin_window_ms=3_000,
    reconnect_grace_ms=500,
    topology_timeout_ms=30_000,
    abort_timeout_ms=1_000,
    receive_timeout_ms=1_500,
    heartbeat_ms_min=300,
    heartbeat_ms_max=500,
)
PROMISE_NOTHING = (m.Interrupt, m.Refused, m.HeartbeatAck, m.Rendezvous)
"""What may leave before a write."""

_KEYS: dict[type, tuple[str, ...]] = {
    JobRecord: (),
    RunRecord: ("run",),
    NodeRecord: ("node_id",),
    IncarnationRecord: ("node_id", "incarnation"),
    GenerationRecord: ("run", "generation"),
    CheckpointRecord: ("run", "step", "rank"),
}


class Store:
    """Rows by key, as the real store keeps them, and what may never happen to them."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Any] = {}
        self.events: list[EventRecord] = []

    def apply(self, records: tuple[Record, ...]) -> None:
        """One transaction."""
        for record in records:
            if isinstance(record, EventRecord):
                self.events.append(record)
                continue
            key = (type(record), *(getattr(record, field) for field in _KEYS[type(record)]))
            self._check(self.rows.get(key), record)
            self.rows[key] = record

    @staticmethod
    def _check(old: Any, new: Record) -> None:
        if old is None:
            return
        if isinstance(new, NodeRecord):
            assert new.incarnation in (old.incarnation, old.incarnation + 1), (old, new)
            if new.incarnation > old.incarnation:
                assert old.state in (NodeState.LOST, NodeState.LEFT), (
                    f"a second life beside a living one: {old}"
                )
        if isinstance(new, JobRecord):
            assert (new.run, new.generation) >= (old.run, old.generation), (old, new)
            assert new.scheduler_incarnation >= old.scheduler_incarnation
        if isinstance(new, GenerationRecord):
            assert (new.step, new.because) == (old.step, old.because), "a plan never changes"

    def all(self, kind: type[Any]) -> tuple[Any, ...]:
        """The rows of a kind, by key."""
        rows = [(key[1:], row) for key, row in self.rows.items() if key[0] is kind]
        return tuple(row for _, row in sorted(rows, key=lambda item: item[0]))

    @property
    def job(self) -> JobRecord | None:
        """The job's row."""
        jobs = self.all(JobRecord)
        return jobs[0] if jobs else None

    def cluster(self, rules: Rules) -> Cluster:
        """The next life of the scheduler."""
        job = self.job
        if job is None:
            return Cluster(new_job("job", rules), rules)
        cluster = Cluster(next_life(job), rules)
        cluster.restore(self.all(NodeRecord), self.all(GenerationRecord), self.all(CheckpointRecord))
        return cluster


class Clock:
    """What happens when."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self.story: deque[str] = deque(maxlen=400)

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Call `what` after a delay."""
        self._numbers += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._numbers, what))

    def soon(self, low: int, high: int, what: Callable[[], None]) -> None:
        """Call `what` after a random delay."""
        self.later(self.random.randint(low, high), what)

    def say(self, text: str) -> None:
        """One line for whoever reads a failure; heartbeats would drown the rest."""
        if "Heartbeat" in text:
            return
        self.story.append(f"{self.now:>7} {text}")

    def step(self) -> None:
        """Take the next thing that happens."""
        self.now, _, what = heapq.heappop(self._queue)
        what()

    def run(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until_ms and not done():
            self.step()
        self.now = self.now if done() else until_ms


class Wire:
    """One connection. Each direction keeps its order; either end may learn of the end later than the other."""

    def __init__(self, clock: Clock, number: int, near: Any, far: SchedulerLife) -> None:
        self.clock, self.number, self.near, self.far = clock, ConnectionId(number), near, far
        self.near_knows = self.far_knows = False
        self.broken = False
        self._last = {"up": 0, "down": 0}

    def send(self, way: str, what: Callable[[], None]) -> None:
        """Deliver in order, unless the connection breaks before."""
        at = max(self._last[way], self.clock.now + self.clock.random.randint(1, 8))
        self._last[way] = at
        self.clock.later(at - self.clock.now, lambda: None if self.broken else what())

    def up(self, message: m.FromNode) -> None:
        """From the node."""
        self.send("up", lambda: self.far.hear(self, message))

    def down(self, message: m.FromScheduler) -> None:
        """From the scheduler."""
        self.send("down", lambda: self.near.hear(self, message))

    def cut(self, reason: str) -> None:
        """Break it now; what is on the way is lost."""
        if self.broken:
            return
        self.broken = True
        self.clock.soon(0, 100, lambda: self.far.hung_up(self, reason))
        self.clock.soon(0, 100, lambda: self.near.hung_up(self, reason))


class SchedulerLife:
    """One life of the scheduler's process."""

    def __init__(self, world: Any, number: int) -> None:
        self.world, self.clock, self.number = world, world.clock, number
        self.store: Store = world.store
        self.up = True
        self.frozen_until = 0
        self.wires: dict[ConnectionId, Wire] = {}
        self._due: dict[str, int] = {}
        self._writes: deque[Persist] = deque()
        self._tokens = 0
        self.cluster = self.store.cluster(world.rules)
        self._do(self.cluster.start(self.clock.now))

    def handle(self, stimulus: SchedulerStimulus) -> None:
        """Let the machine take a stimulus, or have it wait while the process stands still."""
        if not self.up:
            return
        if self.clock.now < self.frozen_until:
            self.clock.later(self.frozen_until - self.clock.now, lambda: self.handle(stimulus))
            return
        if (
            isinstance(stimulus, TimerFired)
            and self._due.get(stimulus.key, self.clock.now + 1) > self.clock.now
        ):
            return
        if isinstance(stimulus, TimerFired):
            del self._due[stimulus.key]
        self._do(self.cluster.handle(stimulus, self.clock.now))

    def hear(self, wire: Wire, message: m.FromNode) -> None:
        self._tokens += 1
        token = ResumeToken(f"{self.number}-{self._tokens}")
        self.clock.say(f"{wire.near.name}#{wire.number} -> {_short(message)}")
        self.handle(MessageReceived(wire.number, message, "peer", token))

    def hung_up(self, wire: Wire, reason: str) -> None:
        if not wire.far_knows:
            wire.far_knows = True
            self.wires.pop(wire.number, None)
            self.handle(ConnectionLost(wire.number, reason))

    def _do(self, effects: list[SchedulerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._writes.append(effect)
                if len(self._writes) == 1:
                    self._write_next()
            elif isinstance(effect, Send):
                assert isinstance(effect.message, PROMISE_NOTHING), f"left before its write: {effect.message}"
                self._send(effect.connection, effect.message)
            elif isinstance(effect, CloseConnection):
                self._close(effect.connection, effect.reason)
            elif isinstance(effect, SetTimer):
                self._due[effect.key] = effect.at_ms
                stimulus = TimerFired(effect.key)
                self.clock.later(max(0, effect.at_ms - self.clock.now), partial(self.handle, stimulus))
            else:
                assert isinstance(effect, Exit), effect
                self.end(effect)

    def _write_next(self) -> None:
        slow = self.clock.random.random() < self.world.slow_writes
        self.clock.soon(1, 600 if slow else 10, self._written)

    def _written(self) -> None:
        if not self.up:
            return
        persist = self._writes.popleft()
        self.store.apply(persist.records)
        for step in persist.then:
            if isinstance(step, Answer):
                self.world.check_promise(step.message)
                self._send(step.connection, step.message)
            else:
                assert isinstance(step, Exit), step
                self.end(step)
        if self._writes and self.up:
            self._write_next()

    def _send(self, connection: ConnectionId, message: m.FromScheduler) -> None:
        wire = self.wires.get(connection)
        if wire is not None:
            self.clock.say(f"{wire.near.name}#{wire.number} <- {_short(message)}")
            wire.down(message)

    def _close(self, connection: ConnectionId, reason: str) -> None:
        wire = self.wires.get(connection)
        if wire is not None:
            wire.send("down", lambda: wire.cut(reason))

    def end(self, exit_: Exit) -> None:
        """It ends by itself."""
        self.clock.say(f"scheduler exits {exit_.code!r} {exit_.reason}")
        self.up = False
        for wire in list(self.wires.values()):  # what was sent before the end still arrives
            wire.send("down", partial(wire.cut, "the scheduler ended"))
        self.world.scheduler_ended(exit_)

    def kill(self) -> None:
        """SIGKILL. Of the writes that wait, any first few may have reached the disk; none was answered."""
        self.clock.say("scheduler killed")
        self.up = False
        for _ in range(self.clock.random.randint(0, len(self._writes))):
            self.store.apply(self._writes.popleft().records)
        for wire in list(self.wires.values()):
            wire.cut("connection closed")


def _short(message: Any) -> str:
    fields = {
        name: getattr(message, name)
        for name in (
            "generation",
            "step",
            "incarnation",
            "token",
            "resumed",
            "code",
            "reason",
            "rank",
            "outcome",
        )
        if getattr(message, name, None) not in (None, "")
    }
    return f"{type(message).__name__} {fields}"


def held(run: int, generation: int, step: int, name: str) -> m.HeldCheckpoint:
    """A checkpoint file as its manifest tells it."""
    return m.HeldCheckpoint(
        run=RunId(run),
        generation=Generation(generation),
        step=step,
        epoch=1,
        step_in_epoch=step,
        path=f"{name}/{step}",
        digest=f"{name}-{generation}-{step}",
        file_bytes=1,
    )
