"""The worker's machine, driven by a test stimulus by stimulus."""

from __future__ import annotations

from typing import Any, TypeVar

from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RequestId, ResumeToken, RunId
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import Identity
from recovery.core.worker.machine import WorkerMachine
from recovery.core.worker.stimuli import WorkerTimer

Kind = TypeVar("Kind")


class DrivenWorker:
    """A worker's machine and what it asked for last. What must always be true of it is checked after every stimulus."""

    def __init__(
        self,
        *,
        standby: bool = False,
        replaces: str = "",
        starts_again: bool = False,
        stores: bool = False,
        **changes: Any,
    ) -> None:
        self.rules = Rules(**{"worker_count": 2, **changes})
        identity = Identity(
            node_id=NodeId("worker_0"),
            role=m.Role.WORKER,
            host="",
            pid=7,
            standby=standby,
            replaces=NodeId(replaces),
            starts_again=starts_again,
            stores=stores,
        )
        self.machine = WorkerMachine(identity, self.rules)
        self.now = 0
        self.effects: list[we.WorkerEffect] = []
        self.is_connected = False
        self.searches = 0
        """How many it has asked for."""

    def handle(self, stimulus: s.WorkerStimulus, at: int | None = None) -> list[we.WorkerEffect]:
        self.now = self.now if at is None else at
        if isinstance(stimulus, (s.Connected, s.Disconnected)):
            self.is_connected = isinstance(stimulus, s.Connected)
        self.effects = self.machine.handle(stimulus, self.now)
        self.searches += len(self.effects_of(we.FindCheckpoints))
        self.machine.check()
        return self.effects

    def receive(self, message: m.FromScheduler, at: int | None = None) -> list[we.WorkerEffect]:
        return self.handle(s.MessageReceived(message), at)

    def fire(self, timer: WorkerTimer, at: int) -> list[we.WorkerEffect]:
        return self.handle(s.TimerFired(timer, 0.5), at)

    def effects_of(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[Kind]) -> list[Kind]:
        return [send.message for send in self.effects_of(we.Send) if isinstance(send.message, kind)]

    # --- how far it is -------------------------------------------------------------------------------------------------

    def registering(self, token: ResumeToken | None = None) -> DrivenWorker:
        self.handle(s.Started(RequestId("r"), token))
        self.handle(s.Connected())
        return self

    def admitted(
        self,
        *,
        resumed: bool = False,
        committed: int = 0,
        durable: int | None = None,
        standby: bool = False,
        job: str = "job",
        began: tuple[m.GenerationStart, ...] = (),
        differs: str = "",
    ) -> DrivenWorker:
        if not self.is_connected:
            self.registering()
        self.receive(
            m.Admitted(
                request_id=RequestId("r"),
                incarnation=Incarnation(1),
                token=ResumeToken("t"),
                rank=None,
                job=job,
                run=RunId(1),
                scheduler_incarnation=Incarnation(1),
                resumed=resumed,
                differs=differs,
                committed_step=committed,
                standby=standby,
                durable_step=durable,
                began=began,
            )
        )
        return self

    def found(self, *held: m.HeldCheckpoint, request: str = "f", **fields: Any) -> list[we.WorkerEffect]:
        """The newest search is done."""
        return self.handle(s.CheckpointsFound(RequestId(request), self.searches, held, **fields))

    def training(self) -> DrivenWorker:
        self.admitted()
        self.found()
        self.receive(plan(1))
        return self

    def reconnect(self) -> None:
        self.handle(s.Disconnected("cut", 0.5))
        self.handle(s.Connected())

    def assert_sent_until_answered(self, request: Any) -> None:
        """It was sent now, is sent again on the next connection, and no more once it is answered."""
        kind = type(request)
        assert self.sent(kind) == [request]
        self.reconnect()
        self.admitted(resumed=True)
        assert self.sent(kind) == [request]
        self.receive(m.Received(request_id=request.request_id))
        self.reconnect()
        self.admitted(resumed=True)
        assert self.sent(kind) == []


def plan(generation: int, step: int = 0) -> m.Rollback:
    return m.Rollback(
        generation=Generation(generation),
        run=RunId(1),
        step=step,
        epoch=0,
        step_in_epoch=0,
        rank=Rank(1),
        world_size=2,
        local_rank=0,
        local_world_size=1,
        path="",
        digest="",
        committed_step=0,
        because="",
    )


def refused(code: str, after: int | None, *, connected: bool = False) -> m.Refused:
    return m.Refused(
        request_id=RequestId("r"), code=code, reason="why", retry_after_ms=after, holder_connected=connected
    )
