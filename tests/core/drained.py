"""Two ranks, standbys, and a departure that a test leads step by step."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.barrier_messages import Depart, Position, SaveAt
from recovery.core.ids import RequestId
from recovery.core.records import EventKind, JobState, NodeRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.barrier import BarrierState
from tests.core.desk import Desk, Worker, checkpoint, running_workers

RULES = Rules(worker_count=2, standby_count=2, drain_timeout_ms=5_000, abort_timeout_ms=10_000)


class Drained:
    """Two ranks that have step 10, and standbys."""

    def __init__(
        self,
        *,
        standbys: int = 1,
        rules: Rules = RULES,
        standby_host: str = "",
        desk: Desk | None = None,
    ) -> None:
        self.desk = desk or Desk(rules)
        self.workers = running_workers(self.desk)
        self.zero, self.one = self.workers
        self.standbys = [
            Worker(self.desk, f"standby_{number}", standby=True, host=standby_host)
            for number in range(standbys)
        ]
        for standby in self.standbys:
            answer = standby.register()
            assert isinstance(answer, m.Admitted)
            assert answer.standby
        for worker in self.workers:
            worker.save(10)

    @property
    def state(self) -> BarrierState:
        assert self.desk.machine.state.barrier is not None
        return self.desk.machine.state.barrier.state

    def is_in(self, state: BarrierState) -> bool:
        return self.state is state

    @property
    def job(self) -> JobState:
        return self.desk.machine.state.job.state

    def depart(self, worker: Worker | None = None) -> RequestId:
        worker = worker or self.one
        request = worker.request()
        worker.send(Depart(request_id=request, reason="SIGTERM"))
        return request

    def asked(self, worker: Worker) -> SaveAt:
        return worker.last(SaveAt)

    def answer(self, worker: Worker, passed: int, *, obstacle: str = "") -> None:
        at = self.asked(worker)
        stops = not obstacle and at.step > passed
        worker.send(Position(drain=at.drain, step=at.step, passed=passed, stops=stops, obstacle=obstacle))

    def saving(self) -> int:
        """A drain whose step all will stop at; gives the step."""
        self.depart()
        for _ in range(2):
            for worker in self.workers:
                self.answer(worker, 14)
        assert self.state is BarrierState.SAVING
        return self.asked(self.zero).step

    def handing_over(self) -> int:
        step = self.saving()
        for worker in self.workers:
            worker.save(step)
        return step

    def take_over(self, standby: Worker, step: int) -> None:
        """The standby finds the file, and the survivor is ready."""
        offer = standby.last(m.Offer)
        assert offer.held[0].step == step
        standby.send(
            m.Ready(
                request_id=standby.request(),
                generation=standby.generation,
                step=0,
                held=offer.held,
                rank=offer.rank,
            )
        )
        self.zero.ready(checkpoint(step, path=f"worker_0/{step}"), checkpoint(10, path="worker_0/10"))

    def node(self, name: str) -> NodeRecord:
        return next(row for row in self.desk.row(NodeRecord) if row.node_id == name)

    def outcome(self) -> str:
        [event] = [one for one in self.desk.events if one.kind is EventKind.DRAIN_ENDED]
        return event.reason
