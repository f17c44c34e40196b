"""A scheduler's store that was lost, where a standby had taken a rank over: the one that held the rank last has it again."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, Rank
from recovery.core.records import EventKind, IncarnationRecord, JobRecord, JobState, NodeRecord, NodeState
from recovery.core.rules import Rules
from recovery.core.scheduler.membership.lost_scheduler_store import REBUILDING
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.pasts import OLD, first_after, pass_time, past, ready

RULES = Rules(worker_count=2, standby_count=1, rebuild_store=True)
BEFORE, LATER = past(1, 10, generation=3), past(1, 10, 20, generation=5)


def come(desk: Desk, *names: str) -> list[Worker]:
    """Fresh processes register."""
    workers = [Worker(desk, name, standby=name.startswith("s")) for name in names]
    for worker in workers:
        assert isinstance(worker.register(), m.Admitted)
    return workers


def ranks(desk: Desk) -> dict[str, int | None]:
    return {str(row.node_id): row.rank for row in desk.row(NodeRecord)}


@pytest.mark.parametrize("standby_first", [True, False])
def test_standby_that_held_the_rank_last_has_it_again(standby_first: bool) -> None:
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    if standby_first:
        ready(waits, LATER)
    ready(first, past(0, 10, 20, generation=5))
    ready(second, BEFORE)
    if not standby_first:
        assert desk.row(JobRecord)[0].state is JobState.FORMING, "the standby has not said what it knows"
        ready(waits, LATER)

    assert ranks(desk) == {"worker_0": 0, "worker_1": None, "s0": 1}
    assert (waits.last(m.Rollback).step, waits.last(m.Rollback).rank) == (20, 1)
    assert second.hears(m.Rollback) == 0
    desk.restart()
    assert desk.machine.state.nodes[NodeId("s0")].slot == "s0"
    assert desk.machine.state.nodes[NodeId("worker_1")].is_standby


def test_numbers_of_incarnations_rise_above_those_of_the_lost_store_without_a_rank_and_for_who_is_gone() -> (
    None
):
    desk = Desk(msgspec.structs.replace(RULES, rejoin_on_proof=True))
    process = m.ProcessIdentity(boot_id="b", pid_namespace=1, start_ticks=7)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    brief = Worker(desk, "s1", standby=True, process=process)
    brief.register()
    ready(second, msgspec.structs.replace(BEFORE, incarnation=Incarnation(8)))
    ready(brief, past(1, 10, generation=2, incarnation=Incarnation(6)))
    brief.die()
    ready(first, past(0, 10, 20, generation=5))
    ready(waits, LATER)
    desk.at(desk.now + 600)

    assert desk.row(JobRecord)[0].state is JobState.RUNNING
    numbers = {str(row.node_id): row.incarnation for row in desk.row(NodeRecord)}
    assert numbers == {"worker_0": 4, "worker_1": 9, "s0": 4, "s1": 7}
    named = {(str(row.node_id), int(row.incarnation)): row.ended for row in desk.row(IncarnationRecord)}
    assert named["worker_1", 9] == ""
    assert named["s1", 7]
    # What was known of its process is known under the next number.
    assert desk.watched["s1"].incarnation == 7
    desk.restart()
    again = Worker(desk, "worker_1")
    second.die()
    desk.at(desk.now + 40_000)
    admitted = again.register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.incarnation == 10


def test_standby_that_knows_nothing_is_waited_for_and_changes_nothing() -> None:
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    # They trained in the newest generation that is known: nobody else is waited for.
    first.generation = second.generation = Generation(3)
    ready(first, past(0, 10, generation=3))
    ready(second, BEFORE)
    assert desk.row(JobRecord)[0].state is JobState.FORMING, "it may have held a rank until the end"
    ready(waits, None)
    assert ranks(desk) == {"worker_0": 0, "worker_1": 1, "s0": None}


@pytest.mark.parametrize("leaves", [True, False])
def test_standby_that_is_gone_before_it_said_what_it_knows_is_not_waited_for(leaves: bool) -> None:
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    ready(first, past(0, 10, generation=3))
    ready(second, BEFORE)
    if leaves:
        waits.send(m.Leave(request_id=waits.request(), reason="SIGTERM"))
    else:
        waits.die()
        desk.at(desk.now + 600)
    # Nobody here trains, so whoever does has one lease to come.
    pass_time(desk, RULES.lease_ms, first, second)
    assert ranks(desk)["worker_1"] == 1
    assert desk.row(JobRecord)[0].state is JobState.RUNNING


@pytest.mark.parametrize("comes", [True, False])
def test_standbys_that_have_all_ranks_have_one_lease_to_come_before_notes_are_believed(comes: bool) -> None:
    """Those who had the ranks before agree on everything, and know nothing of what was trained since."""
    desk = Desk(msgspec.structs.replace(RULES, standby_count=2))
    before = come(desk, "worker_0", "worker_1")
    for rank, worker in enumerate(before):
        ready(worker, past(rank, 10, generation=3))
    assert desk.row(JobRecord)[0].state is JobState.FORMING
    train = [Worker(desk, f"s{rank}", standby=True, job=OLD) for rank in range(2)]
    if comes:
        for rank, worker in enumerate(train):
            worker.generation = Generation(5)
            assert isinstance(worker.register(), m.Admitted)
            ready(worker, past(rank, 10, 20, generation=5))
        plan = train[0].last(m.Rollback)
        assert (plan.step, plan.generation) == (20, first_after(1))
        assert ranks(desk) == {"worker_0": None, "worker_1": None, "s0": 0, "s1": 1}
    else:
        pass_time(desk, RULES.lease_ms, *before)
        plan = before[0].last(m.Rollback)
        assert (plan.step, plan.generation) == (10, first_after(1))


def test_who_trains_is_believed_at_once_though_a_standby_is_missing() -> None:
    desk = Desk(RULES)
    train = [Worker(desk, f"worker_{rank}", job=OLD) for rank in range(2)]
    for rank, worker in enumerate(train):
        worker.generation = Generation(3)
        assert isinstance(worker.register(), m.Admitted)
        ready(worker, past(rank, 10, generation=3))
    assert train[0].last(m.Rollback).generation == first_after(1)


def test_living_standby_that_trains_is_a_member_to_a_scheduler_that_knows_nothing() -> None:
    desk = Desk(RULES)
    living = Worker(desk, "s0", standby=True, job=OLD)
    living.generation = Generation(5)
    admitted = living.register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby, (
        "its id may be none that a slot is called by: it takes a slot when it has said what it knows"
    )
    other = Worker(desk, "worker_0", job=OLD)
    other.generation = Generation(5)
    other.register()
    ready(other, past(0, 10, 20, generation=5))
    ready(living, LATER)
    assert ranks(desk) == {"worker_0": 0, "s0": 1}


def rebuilt_from_the_path() -> Desk:
    """A scheduler whose store was made again from the workers' own: the job forms, and every rank is known."""
    desk = Desk(Rules(worker_count=2, standby_count=1))
    workers = running_workers(desk, "0", "1")
    for one in workers:
        one.save(10)
    [job] = desk.row(JobRecord)
    desk.rows[("JobRecord",)] = msgspec.structs.replace(
        job, state=JobState.FORMING, reason=REBUILDING, cause=Cause.STORE_REBUILT
    )
    desk.restart()
    return desk


def test_rank_that_is_lost_while_a_rebuilt_job_forms_is_offered() -> None:
    desk = rebuilt_from_the_path()
    assert desk.machine.state.job.state is JobState.FORMING
    desk.at(desk.now + 30_000)
    first = Worker(desk, "0")
    desk.at(desk.now + 30_000)
    assert isinstance(first.register(), m.Admitted)
    fresh = Worker(desk, "1.2", replaces="1")
    admitted = fresh.register()
    assert isinstance(admitted, m.Admitted)
    assert admitted.standby
    assert fresh.last(m.Offer).rank == 1
    first.ready(checkpoint(10, path="0/10"))
    fresh.send(
        m.Ready(
            request_id=fresh.request(),
            generation=fresh.generation,
            step=0,
            held=(checkpoint(10, path="1/10"),),
            rank=fresh.last(m.Offer).rank,
        )
    )
    assert {str(row.node_id): (row.rank, row.state) for row in desk.row(NodeRecord)} == {
        "0": (0, NodeState.LIVE),
        "1": (None, NodeState.LOST),
        "1.2": (1, NodeState.LIVE),
    }
    assert fresh.last(m.Rollback).step == 10


def test_who_has_left_again_has_no_rank_whatever_it_knew() -> None:
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    ready(second, LATER)
    second.send(m.Leave(request_id=second.request(), reason="SIGTERM"))
    ready(first, past(0, 10, 20, generation=5))
    ready(waits, BEFORE)
    pass_time(desk, RULES.lease_ms, first, waits)
    assert ranks(desk) == {"worker_0": 0, "worker_1": None, "s0": 1}


def test_standby_whose_connection_closed_for_a_moment_is_still_waited_for() -> None:
    """Ready once does not count for the next connection: it may have held the rank last."""
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    waits.die()
    ready(first, past(0, 10, 20, generation=5))
    ready(second, BEFORE)
    assert desk.row(JobRecord)[0].state is JobState.FORMING, (
        "it may come back, and has not said what it knows"
    )
    waits.register()
    ready(waits, LATER)
    assert ranks(desk) == {"worker_0": 0, "worker_1": None, "s0": 1}


def test_generation_of_who_held_a_rank_and_is_gone_again_is_not_given_again() -> None:
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    ready(waits, past(1, generation=1001))
    waits.die()
    desk.at(desk.now + RULES.reconnect_grace_ms)
    ready(first, past(0, generation=3))
    ready(second, past(1, generation=3))
    assert desk.row(JobRecord)[0].state is JobState.FORMING, "it has one lease to come back"
    pass_time(desk, RULES.lease_ms, first, second)
    assert ranks(desk) == {"worker_0": 0, "worker_1": 1, "s0": None}
    assert first.last(m.Rollback).generation == first_after(1001)


def test_generation_that_somebody_reported_is_not_given_again_by_the_next_process_of_the_scheduler() -> None:
    desk = Desk(RULES)
    [waits] = come(desk, "s0")
    ready(waits, past(1, generation=1001))
    desk.restart()
    first, second = come(desk, "worker_0", "worker_1")
    ready(first, past(0, generation=3))
    ready(second, past(1, generation=3))
    pass_time(desk, 2 * RULES.lease_ms, first, second)
    assert first.last(m.Rollback).generation == first_after(1001)


def test_what_is_known_already_is_not_noted_again() -> None:
    desk = Desk(RULES)
    [waits] = come(desk, "s0")
    ready(waits, past(1, generation=5))
    before = desk.row(NodeRecord)
    assert before[0].generation == 5
    ready(waits, past(1, generation=3))
    assert desk.row(NodeRecord) == before


def test_files_of_a_plan_that_nobody_here_knows_are_not_gone_back_to() -> None:
    """A standby had taken the rank over, was not here when the store was built again, and comes later with files of its own plan."""
    desk = Desk(RULES)
    first, second = come(desk, "worker_0", "worker_1")
    ready(first, past(0, 10, generation=3))
    ready(second, past(1, 10, generation=3))
    pass_time(desk, RULES.lease_ms, first, second)
    plan = first.follow()
    second.follow()
    assert (plan.step, plan.generation) == (10, first_after(1))
    first.die()
    desk.at(desk.now + RULES.reconnect_grace_ms)
    [waits] = come(desk, "s0")
    held = (checkpoint(20, generation=4, path="0/20"), checkpoint(10, generation=3, path="0/10"))
    waits.send(m.Ready(request_id=waits.request(), generation=Generation(0), step=0, held=held, rank=Rank(0)))
    second.ready(
        checkpoint(20, generation=4, path="1/20"), checkpoint(10, generation=3, path="1/10"), step=12
    )
    again = waits.last(m.Rollback)
    assert (again.step, again.generation, again.path) == (10, first_after(1) + 1, "0/10")


def test_holder_of_a_rank_nobody_has_saved_in_has_one_lease_to_come() -> None:
    """Nobody here knows the newest plan: its number would be given twice."""
    desk = Desk(RULES)
    first, second = come(desk, "worker_0", "worker_1")
    ready(first, None)
    ready(second, past(1, generation=3))
    assert desk.row(JobRecord)[0].state is JobState.FORMING
    [waits] = come(desk, "s0")
    ready(waits, past(0, generation=5))
    pass_time(desk, RULES.lease_ms, first, second, waits)
    assert waits.last(m.Rollback).generation == first_after(1)
    assert ranks(desk) == {"worker_0": None, "worker_1": 1, "s0": 0}


def test_job_that_only_who_is_gone_knew_is_no_new_one() -> None:
    desk = Desk(RULES)
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    ready(waits, past(1, 10, generation=5))
    waits.die()
    desk.at(desk.now + RULES.reconnect_grace_ms)
    ready(first, None)
    ready(second, None)
    pass_time(desk, RULES.lease_ms, first, second)
    [job] = desk.row(JobRecord)
    assert (job.job, job.state) == (OLD, JobState.FAILED)
    assert "no step is held by all 2 ranks" in job.reason
    [built] = [event.details for event in desk.events if event.kind is EventKind.STORE_REBUILT]
    assert "s0: rank 1, generation 5, holds steps 10" in built
    assert "nobody knows who was rank 1" in built


@pytest.mark.parametrize("says_ready", [True, False])
def test_generation_that_the_store_has_lost_is_not_given_again_when_who_knew_it_is_gone(
    says_ready: bool,
) -> None:
    desk = Desk(RULES)
    first, second = running_workers(desk, "worker_0", "worker_1")
    first.die()
    first.generation = Generation(7)
    first.register()
    if says_ready:
        first.ready()
    first.die()
    desk.at(desk.now + RULES.lease_ms + RULES.rejoin_window_ms)
    second.register()
    second.ready()
    fresh = Worker(desk, "worker_0")
    fresh.register()
    fresh.ready()
    assert fresh.last(m.Rollback).generation == 8


@pytest.mark.parametrize(
    ("saved", "standbys", "goes_on"), [((), ("s0",), True), ((), (), False), ((10,), ("s0",), False)]
)
def test_standby_has_the_place_that_nobody_comes_for(
    saved: tuple[int, ...], standbys: tuple[str, ...], goes_on: bool
) -> None:
    desk = Desk(msgspec.structs.replace(RULES, topology_timeout_ms=60_000))
    known, *others = come(desk, "worker_1", *standbys)
    ready(known, past(1, *saved, generation=3))
    for one in others:
        ready(one, None)
    pass_time(desk, 59_900, known, *others)
    assert known.hears(m.Rollback) == known.hears(m.JobEnded) == 0, "worker_0 may come"
    pass_time(desk, 200 + RULES.lease_ms, known, *others)
    if goes_on:
        assert ranks(desk) == {"worker_1": 1, "s0": 0}
        assert (known.last(m.Rollback).step, others[0].last(m.Rollback).rank) == (0, 0)
    else:
        assert known.last(m.JobEnded).outcome is m.JobOutcome.WAIT_TIMEOUT


def test_second_limit_ends_the_job_where_a_standby_that_had_the_place_is_gone_again() -> None:
    desk = Desk(msgspec.structs.replace(RULES, topology_timeout_ms=60_000, server_count=1))
    known, waits = come(desk, "worker_1", "s0")
    ready(known, past(1, generation=3, server_count=1))
    ready(waits, None)
    pass_time(desk, 60_100, known, waits)
    assert known.hears(m.JobEnded) == 0
    pass_time(desk, 60_100, known, waits)
    assert known.last(m.JobEnded).outcome is m.JobOutcome.WAIT_TIMEOUT
