"""A host that is left: no standby of it takes the rank that leaves it."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.barrier_messages import Position, SaveAt
from recovery.core.ids import NodeId
from recovery.core.records import EventKind, JobState
from recovery.core.scheduler.stimuli import DrainAsked
from tests.core.desk import Desk, Worker, begin, checkpoint
from tests.core.drained import RULES
from tests.core.standbys import answer, job, reasons, row, standby


def leaving_host_b() -> tuple[Desk, Worker, Worker, Worker]:
    """worker_1 has left host B at a step that all hold; gives its standby there, and one elsewhere."""
    desk = Desk(RULES)
    workers = [Worker(desk, "worker_0", host="A"), Worker(desk, "worker_1", host="B")]
    begin(workers)
    for worker in workers:
        worker.save(10)
    near, far = standby(desk, "near", host="B"), standby(desk, "s_far", host="C")
    desk.handle(DrainAsked((NodeId("worker_1"),), "B", "recovery drain B"))
    for _ in range(2):
        for worker in workers:
            at = worker.last(SaveAt)
            worker.send(Position(drain=at.drain, step=at.step, passed=14, stops=at.step > 14))
    for worker in workers:
        worker.save(workers[0].last(SaveAt).step)
    assert job(desk).state is JobState.INTERRUPTED
    assert (near.hears(m.Offer), far.hears(m.Offer)) == (0, 1)
    return desk, workers[0], near, far


def test_rank_is_not_offered_back_to_the_host_that_it_leaves() -> None:
    desk, _, near, far = leaving_host_b()
    successor = standby(desk, "worker_1.2", replaces="worker_1", host="B")
    near.die()
    near.register()
    answer(far)
    assert reasons(desk, EventKind.TAKEOVER_DECLINED)
    assert (near.hears(m.Offer), successor.hears(m.Offer)) == (0, 0)


def test_whoever_is_there_takes_it_when_nobody_else_has_in_time() -> None:
    desk, first, near, far = leaving_host_b()
    step = far.last(m.Offer).held[0].step
    answer(far)
    for _ in range(8):
        desk.at(desk.now + 3_000)
        for one in (first, near, far):
            one.beat()
    assert near.hears(m.Offer) == 1
    answer(near, step)
    first.ready(checkpoint(step, path=f"worker_0/{step}"))
    assert near.follow().step == step
    assert row(desk, "near").rank == 1


def test_job_does_not_fail_meanwhile_though_who_left_is_not_started_again() -> None:
    desk, _, near, far = leaving_host_b()
    desk.say(desk.connect(), m.Exited(node_id=NodeId("worker_1"), pid=1, reason="left", gives_up=True))
    answer(far)
    assert job(desk).state is JobState.INTERRUPTED
    assert near.hears(m.Offer) == 0
