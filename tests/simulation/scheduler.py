"""One process of the scheduler: the real machine, a writer that takes its time, and an end at any moment."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from recovery.core import messages as m
from recovery.core.barrier_messages import NotHandedOver
from recovery.core.effects import Answer, Exit, Log, Persist
from recovery.core.ids import ConnectionId, NodeId, ResumeToken
from recovery.core.records import EventKind, EventRecord, NodeRecord
from recovery.core.scheduler.effects import (
    CloseConnection,
    EndWatch,
    KeepConnection,
    SchedulerEffect,
    SchedulerTimer,
    Send,
    SetTimer,
    WatchProcess,
)
from recovery.core.scheduler.settle import settle
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived, SchedulerStimulus, TimerFired
from tests.simulation.clock import OwnClock
from tests.simulation.network import DOWN, Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

PROMISE_NOTHING = (m.Interrupt, m.Refused, m.HeartbeatAck, m.Rendezvous, m.StateAgreed, NotHandedOver)
"""What may leave before a write."""

_RETRY_MS = 100
"""How soon a write that found no space is tried again."""


class SchedulerProcess:
    """From its start to its end."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.clock, self.number = world, world.clock, number
        self.own = OwnClock(world.clock, world.shape.drift)
        self.up, self.frozen_until = True, 0
        self.wires: dict[ConnectionId, Wire] = {}
        self._due: dict[SchedulerTimer, int] = {}
        self._writes: deque[Persist] = deque()
        self._committed = False
        self._tokens = 0
        self.machine = world.store.machine(world.rules)
        world.promises.scheduler_started(self)
        self._do(self.machine.start(self.own.read()))

    # --- in ------------------------------------------------------------------------------------------------------------

    def handle(self, stimulus: SchedulerStimulus) -> None:
        """Let the machine take a stimulus, or have it wait while the process is paused."""
        if not self.up:
            return
        if self.clock.now < self.frozen_until:
            self.clock.later(self.frozen_until - self.clock.now, lambda: self.handle(stimulus))
            return
        if isinstance(stimulus, TimerFired):
            if self._due.get(stimulus.timer, self.own.read() + 1) > self.own.read():
                # A later one took its place.
                return
            del self._due[stimulus.timer]
        watch = self.world.promises.before(self, stimulus)
        effects = self.machine.handle(stimulus, self.own.read())
        watch(effects)
        assert settle(self.machine.state, self.own.read()) == [], "what follows was drawn"
        self.world.promises.counted(self)
        self._do(effects)

    def hear(self, wire: Wire, message: m.FromNode) -> None:
        """A message has arrived."""
        self._tokens += 1
        if not isinstance(message, m.Heartbeat):
            self.clock.say(f"{wire.near.name}#{wire.number} -> {described(message)}")
        token = ResumeToken(f"{self.number}-{self._tokens}" if isinstance(message, m.Register) else "")
        self.handle(MessageReceived(wire.number, message, "peer", token))

    def disconnected(self, wire: Wire, reason: str) -> None:
        """The end of a connection is known here."""
        if not wire.far_knows:
            wire.far_knows = True
            self.wires.pop(wire.number, None)
            self.handle(ConnectionLost(wire.number, reason))

    def awaits(self, timer: SchedulerTimer) -> bool:
        """Is it still to be due?"""
        return timer in self._due

    # --- out -----------------------------------------------------------------------------------------------------------

    def _do(self, effects: list[SchedulerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                kinds = (record.kind for record in effect.records if isinstance(record, EventRecord))
                self.clock.seen["a lost store was rebuilt"] += EventKind.STORE_REBUILT in kinds
                self._writes.append(effect)
                if len(self._writes) == 1:
                    self._write_next()
            elif isinstance(effect, Send):
                assert isinstance(effect.message, PROMISE_NOTHING), (
                    f"I5: left before its write: {effect.message}"
                )
                self._send(effect.connection, effect.message)
            elif isinstance(effect, CloseConnection):
                self._close(effect.connection, effect.reason)
            elif isinstance(effect, SetTimer):
                self._due[effect.timer] = effect.at_ms
                fired = partial(self.handle, TimerFired(effect.timer))
                self.clock.later(self.own.until(effect.at_ms), fired)
            elif isinstance(effect, KeepConnection):
                self.clock.seen["a refused node stayed connected"] += 1
            elif isinstance(effect, WatchProcess):
                self.world.proofs.watch(self, effect)
            elif isinstance(effect, Log):
                self.clock.say(f"scheduler: {effect.text}")
            elif isinstance(effect, Exit):
                self.end(effect)
            else:
                assert isinstance(effect, EndWatch), effect
                self.world.proofs.end_watch(self, effect)

    def _write_next(self) -> None:
        draw = self.clock.draw("disk")
        slow = draw.random() < self.world.slow_writes
        self.clock.later(draw.randint(1, 300 if slow else 5), self._commit)

    def _commit(self) -> None:
        if not self.up:
            return
        if self.clock.now < self.world.disk_full_until:
            self.clock.seen["a write found no space"] += 1
            self.clock.later(_RETRY_MS, self._commit)
            return
        if self.world.next_sync_fails and self._writes[0].records:
            self.world.next_sync_fails = False
            self.clock.seen["an fsync failed"] += 1
            # It ends itself and starts again from what is on disk.
            self.world.kill_scheduler()
            return
        self.world.store.commit(self._writes[0].records)
        self._committed = True
        self.clock.soon("disk", 1, 5, self._synced)

    def _synced(self) -> None:
        if not self.up:
            return
        self._committed = False
        self.world.store.sync()
        for step in self._writes.popleft().then:
            if isinstance(step, Answer):
                self.world.promises.answered(self, step)
                self.world.drains.answered(self, step)
                self._send(step.connection, step.message)
            else:
                assert isinstance(step, Exit), step
                self.end(step)
        if self._writes and self.up:
            self._write_next()

    def _send(self, connection: ConnectionId, message: m.FromScheduler) -> None:
        wire = self.wires.get(connection)
        if wire is None:
            return
        if not isinstance(message, m.HeartbeatAck):
            self.clock.say(f"{wire.near.name}#{wire.number} <- {described(message)}")
        wire.down(message)

    def _close(self, connection: ConnectionId, reason: str) -> None:
        wire = self.wires.get(connection)
        if wire is not None:
            wire.send(DOWN, lambda: wire.cut(reason))

    def written(self, node_id: NodeId) -> list[NodeRecord]:
        """The rows of a node that are being written: a kill may leave the first of them without the others."""
        rows = (record for write in self._writes for record in write.records)
        return [row for row in rows if isinstance(row, NodeRecord) and row.node_id == node_id]

    # --- the end -------------------------------------------------------------------------------------------------------

    def end(self, exit_: Exit) -> None:
        """It ends by itself; what was sent before still arrives."""
        self.clock.say(f"scheduler exits {exit_.code!r} {exit_.reason}")
        self.up = False
        for wire in list(self.wires.values()):
            wire.send(DOWN, partial(wire.cut, "the scheduler ended"))
        self.world.scheduler_ended(exit_)

    def kill(self) -> None:
        """SIGKILL. The write under way may have become a transaction or not; none was answered."""
        self.clock.say("scheduler killed")
        self.up = False
        if self._writes:
            self.clock.seen["the scheduler was killed with writes under way"] += 1
            if not self._committed and self.clock.draw("disk").random() < 0.5:
                self.world.store.commit(self._writes[0].records)
        for wire in list(self.wires.values()):
            wire.cut("connection closed")


def described(message: Any) -> str:
    """A message in a few words."""
    names = ("generation", "step", "incarnation", "token", "resumed", "code", "reason", "rank", "outcome")
    fields = " ".join(
        f"{name}={getattr(message, name)}" for name in names if getattr(message, name, None) not in (None, "")
    )
    return f"{type(message).__name__} {fields}"
