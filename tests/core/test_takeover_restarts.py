"""Ranks that are taken over while schedulers restart, launchers give up and runs follow each other."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.records import JobState, NodeState
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.standbys import (
    GRACE_MS,
    RULES,
    answer,
    job,
    lose,
    pass_the_window,
    row,
    slot,
    standby,
    taken_over,
    training,
)

# --- launchers that give up ------------------------------------------------------------------------------------------


def exited(desk: Desk, one: Worker) -> None:
    """Its launcher saw it end, and does not start it again."""
    desk.say(desk.connect(), m.Exited(node_id=one.node_id, pid=1, reason="killed by SIGKILL", gives_up=True))


def test_launcher_that_gives_up_a_standby_ends_nothing() -> None:
    desk = Desk(RULES)
    training(desk)
    waits = standby(desk)
    waits.die()
    exited(desk, waits)
    assert row(desk, "s0").state is NodeState.LOST
    assert job(desk).state is JobState.RUNNING


@pytest.mark.parametrize("before_its_loss", [True, False])
def test_worker_that_is_given_up_is_replaced_where_a_standby_can_take_its_rank(before_its_loss: bool) -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    if not before_its_loss:
        desk.at(desk.now + GRACE_MS)
    exited(desk, second)
    assert job(desk).state is JobState.INTERRUPTED
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == 1


def test_worker_that_is_given_up_ends_the_job_once_no_standby_can_take_its_rank() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    exited(desk, second)
    answer(waits)
    assert job(desk).state is JobState.FAILED
    assert "killed by SIGKILL; it is not started again, and no standby can take its rank" in job(desk).reason


@pytest.mark.parametrize("with_standby", [True, False])
def test_scheduler_that_is_restarted_decides_again_when_it_is_told_again_who_is_given_up(
    with_standby: bool,
) -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    exited(desk, second)
    desk.restart()
    first.register()
    if with_standby:
        waits.register()
    else:
        desk.at(desk.now + RULES.lease_ms)
    exited(desk, second)
    if with_standby:
        answer(waits, 10)
        first.ready(checkpoint(10, path="worker_0/10"))
        assert waits.follow().rank == 1
    else:
        assert job(desk).state is JobState.FAILED


def test_worker_that_is_given_up_ends_the_job_when_the_last_standby_is_lost() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    second.die()
    exited(desk, second)
    lose(desk, waits)
    assert job(desk).state is JobState.FAILED


# --- restarts --------------------------------------------------------------------------------------------------------


def back(*workers: Worker) -> None:
    """They find the scheduler's next process."""
    for one in workers:
        assert isinstance(one.register(), m.Admitted)


def test_scheduler_that_is_restarted_with_an_offer_open_asks_again() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    desk.restart()
    back(first, waits)
    assert waits.last(m.Offer).rank == 1
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == 1


def test_scheduler_that_is_restarted_after_the_slot_moved_knows_who_has_it() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 10)
    desk.restart()
    back(first, waits)
    assert waits.last(m.Offer).rank == 1, "it has followed no plan yet: it says again what it can read"
    answer(waits, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert waits.follow().rank == 1
    refused = second.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "FENCED"


def test_worker_that_dies_while_no_scheduler_runs_is_replaced_when_one_does() -> None:
    desk = Desk(RULES)
    first, _ = training(desk, 10)
    waits = standby(desk)
    desk.restart()
    back(first, waits)
    for _ in range(11):
        desk.at(desk.now + 3_000)
        first.beat()
        waits.beat()
    assert waits.last(m.Offer).rank == 1


def test_next_run_gives_its_places_again() -> None:
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    pass_the_window(desk, first, waits)
    old = standby(desk, "worker_1")
    first.done()
    waits.done()
    for one in (first, waits, old):
        one.die()
    desk.at(desk.now + 5_000)
    desk.restart()
    assert job(desk).run == 2
    assert [slot(desk, name) for name in ("s0", "worker_1")] == ["", ""], "nobody is awaited under these"
    fresh = standby(desk)
    workers = [Worker(desk, name) for name in ("worker_0", "worker_1")]
    for one in workers:
        one.register()
        one.ready()
    assert [one.follow().rank for one in workers] == [0, 1]
    assert row(desk, fresh.node_id).rank is None
