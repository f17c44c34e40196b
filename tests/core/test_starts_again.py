"""A survivor that starts its program again is away for seconds: its rank is not given to a standby meanwhile, unless it has ended."""

from __future__ import annotations

from msgspec import structs

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import STARTED_AGAIN, EventKind, JobState
from recovery.core.scheduler.stimuli import ProcessGone
from tests.core.desk import Desk, Worker, begin, checkpoint
from tests.core.driven_worker import DrivenWorker
from tests.core.standbys import GRACE_MS, RULES, answer, job, lose, row, standby

IDENTITY = m.ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=100)


def interrupted(*, starts_again: bool = True, taken: bool = True) -> tuple[Desk, Worker, Worker]:
    """Rank 1 is lost and a standby has it; another standby waits. Gives rank 0's worker, whose connection has closed then, and that one.

    Args:
        starts_again: what the workers have said of themselves.
        taken: False: the standby was asked for the rank and has not answered yet.
    """
    desk = Desk(structs.replace(RULES, standby_count=2))
    first = Worker(desk, "worker_0", starts_again=starts_again, process=IDENTITY)
    second = Worker(desk, "worker_1", starts_again=starts_again)
    begin([first, second])
    for worker in (first, second):
        worker.save(20)
    taker = standby(desk)
    # While rank 1 is vacant, whoever replaces its last holder is asked for that rank only.
    other = None if taken else standby(desk, "s1")
    lose(desk, second)
    if taken:
        answer(taker, 20)
        assert row(desk, "s0").rank == 1
    other = other or standby(desk, "worker_1.2", replaces="worker_1")
    lose(desk, first)
    return desk, first, other


def test_it_says_so_when_it_registers() -> None:
    [register] = DrivenWorker(starts_again=True).registering().sent(m.Register)
    assert register.starts_again
    [register] = DrivenWorker().registering().sent(m.Register)
    assert not register.starts_again


def test_its_rank_is_offered_to_nobody_and_it_comes_back_by_its_token() -> None:
    desk, first, other = interrupted()
    assert other.hears(m.Offer) == 0
    admitted = first.register()
    assert isinstance(admitted, m.Admitted)
    assert (admitted.resumed, admitted.rank, admitted.incarnation) == (True, 0, 1)
    [resumed] = [event for event in desk.events if event.kind is EventKind.NODE_RESUMED]
    assert resumed.reason == STARTED_AGAIN
    first.ready(checkpoint(20, path="worker_0/20"))
    assert job(desk).state is JobState.RUNNING


def test_whoever_does_not_start_again_is_replaced_after_its_grace() -> None:
    _, _, other = interrupted(starts_again=False)
    assert other.last(m.Offer).rank == 0


def test_it_is_waited_for_no_longer_than_its_lease() -> None:
    desk, _, other = interrupted()
    closed_ms = desk.now - GRACE_MS
    desk.at(closed_ms + RULES.lease_ms - 1)
    assert other.hears(m.Offer) == 0
    desk.at(closed_ms + RULES.lease_ms)
    assert other.last(m.Offer).rank == 0


def test_its_proven_end_gives_the_rank_away_at_once() -> None:
    desk, first, other = interrupted()
    assert "worker_0" in desk.watched, "its process is watched for as long as its rank is kept"
    desk.handle(ProcessGone(NodeId("worker_0"), first.incarnation))
    assert other.last(m.Offer).rank == 0


def test_its_reported_end_gives_the_rank_away_at_once() -> None:
    desk, _, other = interrupted()
    desk.say(desk.connect(), m.Exited(node_id=NodeId("worker_0"), pid=1, reason="killed by SIGSEGV"))
    assert other.last(m.Offer).rank == 0


def test_whose_end_was_reported_before_its_connection_closed_is_not_waited_for() -> None:
    desk, first, other = interrupted()
    assert isinstance(first.register(), m.Admitted)
    desk.say(desk.connect(), m.Exited(node_id=NodeId("worker_0"), pid=1, reason="killed by SIGSEGV"))
    first.die()
    assert other.last(m.Offer).rank == 0


def test_who_is_back_and_dies_while_it_waits_for_the_plan_is_replaced_as_anybody() -> None:
    desk, first, other = interrupted(taken=False)
    assert isinstance(first.register(), m.Admitted)
    first.ready(checkpoint(20, path="worker_0/20"))
    lose(desk, first)
    assert other.last(m.Offer).rank == 0


def test_a_first_death_is_no_start_again() -> None:
    desk = Desk(RULES)
    workers = [Worker(desk, f"worker_{number}", starts_again=True) for number in range(2)]
    begin(workers)
    waits = standby(desk)
    lose(desk, workers[1])
    assert waits.last(m.Offer).rank == 1
    assert [event.node_id for event in desk.events if event.kind is EventKind.NODE_LOST] == ["worker_1"]
