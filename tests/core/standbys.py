"""A desk with standbys: what tests of taking over a rank begin with."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.ids import Rank
from recovery.core.records import EventKind, JobRecord, NodeRecord, SlotRecord
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers

RULES = Rules(worker_count=2, standby_count=1)
GRACE_MS = 600


def standby(desk: Desk, name: str = "s0", **fields: object) -> Worker:
    """A standby that waits."""
    one = Worker(desk, name, standby=True, **fields)
    admitted = one.register()
    assert isinstance(admitted, m.Admitted), admitted
    assert (admitted.rank, admitted.standby) == (None, True)
    one.ready()
    return one


def training(desk: Desk, *steps: int) -> list[Worker]:
    """Two workers that train and have saved."""
    workers = running_workers(desk)
    for step in steps:
        for worker in workers:
            worker.save(step)
    return workers


def lose(desk: Desk, worker: Worker) -> None:
    """It dies, and its grace goes by."""
    worker.die()
    desk.at(desk.now + GRACE_MS)


def answer(
    one: Worker, *steps: int, of: str = "worker_1", rank: int = 1, written_in: int = 1
) -> list[m.FromScheduler]:
    """Say which of a rank's files it can read."""
    held = tuple(checkpoint(step, path=f"{of}/{step}", generation=written_in) for step in steps)
    return one.send(
        m.Ready(
            request_id=one.request(),
            generation=one.generation,
            step=0,
            held=held,
            rank=Rank(rank),
        )
    )


def row(desk: Desk, name: str) -> NodeRecord:
    """A node as it is stored."""
    return next(one for one in desk.row(NodeRecord) if one.node_id == name)


def slot(desk: Desk, name: str) -> str | None:
    """Its slot as it is stored; None: no row."""
    return next((one.slot for one in desk.row(SlotRecord) if one.node_id == name), None)


def reasons(desk: Desk, kind: EventKind) -> list[str]:
    return [event.reason for event in desk.events if event.kind is kind]


def job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def pass_the_window(desk: Desk, *alive: Worker) -> None:
    """Let the window of a lost id go by."""
    for _ in range(11):
        desk.at(desk.now + 3_000)
        for one in alive:
            one.beat()


def taken_over(desk: Desk) -> tuple[Worker, Worker, Worker]:
    """worker_0 and s0 train in generation 2, s0 with the rank of worker_1, which is lost; they have saved step 20."""
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    for one in (first, waits):
        one.follow()
        one.save(20)
    return first, waits, second
