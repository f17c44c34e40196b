"""A scheduler's machine on a desk: its writes are durable at once, its answers lie in a tray per connection."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from recovery.core import messages as m
from recovery.core.copy_records import CopyRecord
from recovery.core.effects import Answer, Exit, Persist
from recovery.core.ids import ConnectionId, Generation, Incarnation, NodeId, RequestId, ResumeToken, RunId
from recovery.core.principals import Principal
from recovery.core.records import (
    CheckpointRecord,
    EventKind,
    EventRecord,
    GenerationRecord,
    JobRecord,
    LiveSourceRecord,
    NodeRecord,
    ProcessRecord,
    Record,
    SlotRecord,
    TrainingEndRecord,
)
from recovery.core.rules import Rules
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
from recovery.core.scheduler.job_states import new_job, next_incarnation
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.core.scheduler.settle import settle
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived, SchedulerStimulus, TimerFired
from recovery.core.tokens import request_of

PrincipalKind = TypeVar("PrincipalKind")


class Desk:
    """Drives one scheduler over its restarts."""

    def __init__(self, rules: Rules, *, checked: bool = True) -> None:
        self.rules, self._checked = rules, checked
        self.now = 0
        self.rows: dict[tuple[object, ...], Record] = {}
        self.events: list[EventRecord] = []
        self.tray: dict[int, list[m.FromScheduler]] = {}
        self.closed: set[int] = set()
        self.kept: set[int] = set()
        """Connections that stay open after a refusal."""
        self.timers: dict[SchedulerTimer, int] = {}
        self.watched: dict[str, WatchProcess] = {}
        """By node id: the process whose end a test would report."""
        self.exit: Exit | None = None
        self._numbers = 0
        self.machine = SchedulerMachine(new_job("job", rules), rules)
        self._do(self.machine.start(self.now))

    # --- the scheduler's process ---------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Kill the scheduler and start it again from what was written."""
        job = self.row(JobRecord)[0]
        self.timers.clear()
        self.watched.clear()
        self.exit = None
        self.machine = SchedulerMachine(next_incarnation(job), self.rules)
        self.machine.restore(
            tuple(self.row(NodeRecord)),
            tuple(self.row(GenerationRecord)),
            tuple(self.row(CheckpointRecord)),
            tuple(self.row(SlotRecord)),
            tuple(self.row(ProcessRecord)),
            tuple(self.row(CopyRecord)),
            live_sources=tuple(self.row(LiveSourceRecord)),
            training_ends=tuple(self.row(TrainingEndRecord)),
        )
        self._do(self.machine.start(self.now))

    def row(self, kind: type[PrincipalKind]) -> list[PrincipalKind]:
        """All stored rows of a kind, by key."""
        return [
            row
            for _, row in sorted(self.rows.items(), key=lambda item: repr(item[0]))
            if isinstance(row, kind)
        ]

    def kinds(self) -> list[EventKind]:
        """The kinds of all events."""
        return [event.kind for event in self.events]

    # --- time and the wire -----------------------------------------------------------------------------------------------

    def at(self, now: int) -> None:
        """Let time pass, firing what is due."""
        while self.timers:
            timer, due = min(self.timers.items(), key=lambda item: (item[1], repr(item[0])))
            if due > now:
                break
            del self.timers[timer]
            self.now = max(self.now, due)
            self.handle(TimerFired(timer))
        self.now = now

    def handle(self, stimulus: SchedulerStimulus) -> None:
        """Deliver one stimulus."""
        before = self._committed()
        self._do(self.machine.handle(stimulus, self.now))
        if self._checked:
            self.machine.check()
            assert settle(self.machine.state, self.now) == [], "what follows was drawn"
            after = self._committed()
            assert before[:2] != after[:2] or before[2] <= after[2], (
                f"within a generation the committed step only rises: {before}, {after}"
            )

    def _committed(self) -> tuple[int, int, int]:
        """Run, generation and committed step."""
        state = self.machine.state
        return (state.job.run, state.job.generation, state.checkpoints.committed_step)

    def connect(self) -> ConnectionId:
        """A new connection."""
        self._numbers += 1
        self.tray[self._numbers] = []
        return ConnectionId(self._numbers)

    def say(
        self,
        connection: ConnectionId,
        message: m.FromNode,
        principal: Principal | None = None,
        *,
        peer: str = "10.0.0.1",
    ) -> list[m.FromScheduler]:
        """A node speaks; returns what it hears from then on."""
        before = len(self.tray[connection])
        token = ResumeToken(f"token-{connection}-{self.now}")
        self.handle(MessageReceived(connection, message, peer, token, principal))
        return self.tray[connection][before:]

    def lose(self, connection: ConnectionId, reason: str = "connection closed") -> None:
        """A connection closes."""
        self.handle(ConnectionLost(connection, reason))

    def _do(self, effects: list[SchedulerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._write(effect)
            elif isinstance(effect, Send):
                self.tray.setdefault(effect.connection, []).append(effect.message)
            elif isinstance(effect, SetTimer):
                self.timers[effect.timer] = effect.at_ms
            elif isinstance(effect, CloseConnection):
                self.closed.add(effect.connection)
            elif isinstance(effect, KeepConnection):
                self.kept.add(effect.connection)
            elif isinstance(effect, WatchProcess):
                self.watched[effect.node_id] = effect
            elif isinstance(effect, EndWatch):
                self.watched.pop(effect.node_id)
            elif isinstance(effect, Exit):
                self.exit = effect

    def _write(self, persist: Persist) -> None:
        for record in persist.records:
            if isinstance(record, EventRecord):
                self.events.append(record)
            else:
                self.rows[_key(record)] = record
        for step in persist.then:
            if isinstance(step, Answer):
                self.tray.setdefault(step.connection, []).append(step.message)
            elif isinstance(step, Exit):
                self.exit = step


_KEYS = {
    "NodeRecord": ("node_id",),
    "SlotRecord": ("node_id",),
    "RunRecord": ("run",),
    "IncarnationRecord": ("node_id", "incarnation"),
    "ProcessRecord": ("node_id", "incarnation"),
    "GenerationRecord": ("run", "generation"),
    "LiveSourceRecord": ("run", "generation", "rank"),
    "TrainingEndRecord": ("run",),
    "CheckpointRecord": ("run", "step", "rank"),
    "CopyRecord": ("run", "step", "rank", "node_id"),
    "StepRecord": ("node_id",),
}


def _key(record: Record) -> tuple[object, ...]:
    name = type(record).__name__
    return (name, *(getattr(record, field) for field in _KEYS.get(name, ())))


_numbers = itertools.count()


class Worker:
    """One worker's side of the conversation, without a machine: it says what a test wants it to say."""

    def __init__(self, desk: Desk, node_id: str, **fields: object) -> None:
        self.desk, self.node_id = desk, NodeId(node_id)
        self.stays = False
        """After a refusal for now it stays connected. False: it hangs up and asks again on another connection, as earlier releases do."""
        self.token: ResumeToken | None = None
        self.incarnation = Incarnation(0)
        self.generation = Generation(0)
        self._fields = fields
        self._requests = 0
        self._number = next(_numbers)
        self.connection = ConnectionId(0)
        self.registration: m.Register
        """The newest."""
        self.heard: list[m.FromScheduler] = []

    def request(self) -> RequestId:
        self._requests += 1
        return RequestId(f"{self.node_id}-{self._number}-{self._requests}")

    def register(self, *, request: RequestId | None = None, keep_token: bool = True) -> m.FromScheduler:
        """Connect and register; returns the answer."""
        self.connection = self.desk.connect()
        self.registration = self.made(request, keep_token=keep_token)
        heard = self.desk.say(self.connection, self.registration)
        answer = next(one for one in heard if isinstance(one, (m.Admitted, m.Refused, m.JobEnded)))
        if isinstance(answer, m.Admitted):
            self.token, self.incarnation = answer.token, answer.incarnation
        elif isinstance(answer, m.Refused) and not self.stays:
            self.desk.lose(self.connection)
        return answer

    def made(self, request: RequestId | None = None, *, keep_token: bool = True) -> m.Register:
        """What it would register with now."""
        secret = request or self.request()
        message = m.Register(
            request_id=RequestId(request_of(secret)),
            request_secret=ResumeToken(secret),
            protocol=m.PROTOCOL_VERSION,
            node_id=self.node_id,
            role=m.Role.WORKER,
            host="",
            pid=1,
            worker_count=self.desk.rules.worker_count,
            server_count=self.desk.rules.server_count,
            recovery_enabled=self.desk.rules.recovery_enabled,
            token=self.token if keep_token else None,
            incarnation=self.incarnation,
            generation=self.generation,
        )
        return msgspec.structs.replace(message, **self._fields)

    def told(self) -> m.Admitted:
        """It was refused for now, and has been told meanwhile, on the same connection, that it is in."""
        answer = self.last(m.Admitted)
        self.token, self.incarnation = answer.token, answer.incarnation
        return answer

    def send(self, message: m.FromNode) -> list[m.FromScheduler]:
        return self.desk.say(self.connection, message)

    def ready(self, *held: m.HeldCheckpoint, step: int = 0) -> list[m.FromScheduler]:
        return self.send(m.Ready(request_id=self.request(), generation=self.generation, step=step, held=held))

    def beat(self) -> None:
        self.send(m.Heartbeat(sequence=1, generation=self.generation, step=0))

    def last(self, kind: type[PrincipalKind]) -> PrincipalKind:
        """The newest message of a kind that it heard."""
        return [one for one in self.desk.tray[self.connection] if isinstance(one, kind)][-1]

    def hears(self, kind: type[object]) -> int:
        """How many messages of a kind it heard on this connection."""
        return sum(isinstance(one, kind) for one in self.desk.tray[self.connection])

    def follow(self) -> m.Rollback:
        """Take the newest plan."""
        plan = self.last(m.Rollback)
        self.generation = plan.generation
        return plan

    def save(self, step: int, *, path: str = "", epoch: int = 0) -> m.HeldCheckpoint:
        """Report a checkpoint, of a file that the step names unless a path does; of the epoch that the step is in unless another is given."""
        held = checkpoint(step, generation=self.generation, path=path or f"{self.node_id}/{step}")
        held = msgspec.structs.replace(held, epoch=epoch or held.epoch)
        self.send(m.CheckpointReport(request_id=self.request(), checkpoint=held))
        return held

    def raises(self, error: str = "ValueError: x") -> None:
        """Its own code raised; it says so before it ends."""
        self.send(
            m.Failure(
                request_id=self.request(), generation=self.generation, step=3, error=error, traceback="T"
            )
        )

    def done(self, step: int = 100) -> None:
        self.send(m.Done(request_id=self.request(), generation=self.generation, step=step))

    def die(self) -> None:
        self.desk.lose(self.connection)


def checkpoint(step: int, *, generation: int = 1, path: str = "", run: int = 1) -> m.HeldCheckpoint:
    """A checkpoint of a step; ten steps are an epoch."""
    return m.HeldCheckpoint(
        run=RunId(run),
        generation=Generation(generation),
        step=step,
        epoch=(step - 1) // 10 + 1,
        step_in_epoch=(step - 1) % 10 + 1,
        path=path,
        digest=f"{path}@{generation}",
        file_bytes=1,
    )


def registration(**fields: object) -> m.Register:
    """The first message of a fresh worker_0 of two workers, but for these fields."""
    plain = m.Register(
        request_id=RequestId("r"),
        protocol=m.PROTOCOL_VERSION,
        node_id=NodeId("worker_0"),
        role=m.Role.WORKER,
        host="",
        pid=1,
        worker_count=2,
        server_count=0,
        recovery_enabled=True,
    )
    return msgspec.structs.replace(plain, **fields)


def begin(workers: Sequence[Worker]) -> None:
    """Let them register, say that they are ready, and follow the plan."""
    for worker in workers:
        assert isinstance(worker.register(), m.Admitted)
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.follow()


def running_workers(desk: Desk, *names: str) -> list[Worker]:
    """Workers that have registered, are ready and follow the first plan."""
    workers = [Worker(desk, name) for name in names or ("worker_0", "worker_1")]
    begin(workers)
    return workers
