"""A scheduler that did not run for a while: no limit that ended meanwhile counts, since what the others sent is not read yet."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, NodeId, Rank
from recovery.core.records import JobRecord, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import GraceTimer, LeaseTimer, RebuildTimer
from recovery.core.scheduler.stimuli import TimerFired
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.pasts import began, come, past, ready
from tests.core.standbys import answer, lose, standby, training


def wake(desk: Desk, after_ms: int) -> None:
    """Everything that was due in that time is due now, at once."""
    desk.now += after_ms
    desk.at(desk.now)


def state(desk: Desk) -> JobState:
    return desk.row(JobRecord)[0].state


def test_nobody_is_lost_by_it() -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    first.die()
    grace, lease = GraceTimer(NodeId("worker_0")), LeaseTimer(NodeId("worker_1"))
    desk.timers.clear()
    desk.now = 120_000

    desk.handle(TimerFired(grace))
    desk.handle(TimerFired(lease))

    assert state(desk) is JobState.RUNNING
    assert desk.timers == {grace: 120_500, lease: 150_000}


@pytest.mark.parametrize("comes", [True, False])
def test_job_does_not_fail_while_its_missing_node_stands_at_the_door(comes: bool) -> None:
    desk = Desk(Rules(worker_count=2, topology_timeout_ms=5_000, lease_ms=60_000))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    first.register()
    first.ready()

    wake(desk, 6_000)

    assert state(desk) is JobState.FORMING
    if comes:
        second.register()
        second.ready()
        assert state(desk) is JobState.RUNNING
    desk.at(10_999)
    assert state(desk) is (JobState.RUNNING if comes else JobState.FORMING)
    desk.at(11_000)
    assert state(desk) is (JobState.RUNNING if comes else JobState.FAILED)


def test_what_a_standby_has_answered_meanwhile_counts() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)

    wake(desk, desk.rules.abort_timeout_ms + 1_000)

    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == Rank(1)


def test_a_standby_that_does_not_answer_behind_it_either_declines() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    _, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    offers = desk.machine.state.vacancies.offers

    wake(desk, desk.rules.abort_timeout_ms + 1_000)
    assert [offer.standby for offer in offers.values()] == [waits.node_id]

    desk.at(desk.now + desk.rules.abort_timeout_ms)
    assert not offers


def test_who_was_cut_off_at_the_end_still_hears_of_it() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk)
    for worker in (first, second):
        worker.done()
        worker.die()

    wake(desk, 60_000)

    assert desk.exit is None
    assert isinstance(first.register(), m.JobEnded)
    desk.at(desk.now + 2_000)
    assert desk.exit is not None


def test_a_node_that_knows_more_of_a_lost_store_has_its_time_behind_it() -> None:
    """Seed 58003811 of the simulation: the first message behind the pause found the time over, and the job failed."""
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    held = (checkpoint(20, generation=5, path="0/20"), checkpoint(10, generation=3, path="0/10"))
    newest = past(0, generation=5, began=(began(3, 0), began(5, 10)), held=held, saved_step=20)
    first, _ = come(desk, newest, past(1, 10, generation=3))

    desk.now += desk.rules.lease_ms + 1_000
    first.beat()
    assert state(desk) is JobState.FORMING, "a message does not end the time"
    desk.at(desk.now)
    assert state(desk) is JobState.FORMING, "it begins again"

    fresh = Worker(desk, "worker_3.2", replaces="worker_3")
    assert isinstance(fresh.register(), m.Admitted)
    ready(fresh, past(1, 10, 20, generation=5))
    assert fresh.last(m.Rollback).step == 20
    assert first.last(m.Rollback).generation > Generation(5)

    desk.handle(TimerFired(RebuildTimer()))
    assert state(desk) is JobState.RUNNING, "its timer means nothing any more"
