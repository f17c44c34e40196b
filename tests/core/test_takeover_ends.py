"""A rank that nobody can take any more ends the job: once, and whatever else was lost with it."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import EventKind, JobState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.standbys import RULES, answer, job, lose, reasons, row, slot, standby, taken_over, training

THREE = Rules(worker_count=3, standby_count=1)


def give_up(desk: Desk, name: str) -> None:
    """A launcher says that it does not start this one again."""
    exited = m.Exited(node_id=NodeId(name), pid=1, reason="exit code 1", gives_up=True)
    desk.say(desk.connect(), exited)


def two_given_up(desk: Desk) -> tuple[Worker, Worker]:
    """Of three ranks two are lost for good, and there is one standby; gives the rank that is left, and the standby."""
    workers = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for worker in workers:
        worker.save(10)
    one = standby(desk)
    for worker in workers[1:]:
        worker.die()
        give_up(desk, worker.node_id)
    return workers[0], one


@pytest.mark.parametrize("how", ["leaves", "dies", "declines"])
def test_job_whose_ranks_nobody_can_take_ends_once(how: str) -> None:
    desk = Desk(THREE)
    left, waits = two_given_up(desk)
    if how == "leaves":
        waits.send(m.Leave(request_id=waits.request(), reason="SIGTERM"))
    elif how == "dies":
        lose(desk, waits)
    else:
        answer(waits, of="worker_1", rank=1)
    assert job(desk).state is JobState.FAILED
    assert left.hears(m.JobEnded) == 1
    assert len(reasons(desk, EventKind.JOB_FAILED)) == 1
    assert not desk.machine.state.vacancies.offers
    assert waits.hears(m.Offer) == 1, "nothing is asked behind the end"
    if how == "declines":
        lacks = "it cannot read the rank's file of step 10; its newest is none"
        assert reasons(desk, EventKind.JOB_FAILED)[0].endswith(
            f"; s0 did not take the rank of worker_1: {lacks}"
        )


# --- who came for a rank, and is given up without it ----------------------------------------------------------------------


def test_job_ends_when_the_process_that_was_to_take_the_rank_is_given_up_before_it_comes() -> None:
    desk = Desk(Rules(worker_count=2))
    _, second = training(desk, 10)
    lose(desk, second)
    give_up(desk, "worker_7.2")
    assert job(desk).state is JobState.INTERRUPTED, "of another job, as far as anybody knows"
    give_up(desk, "worker_1.2")
    [why] = reasons(desk, EventKind.JOB_FAILED)
    assert why == "worker_1: exit code 1; it is not started again"


def test_job_ends_when_the_process_that_came_for_the_rank_is_given_up_without_it() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    lose(desk, second)
    taker = standby(desk, "worker_1.2", replaces="worker_1", host="10.0.0.9")
    answer(taker)
    lose(desk, taker)
    give_up(desk, "worker_1.2")
    assert job(desk).state is JobState.FAILED


def test_job_ends_when_the_first_id_of_a_place_is_given_up_while_it_waits_for_its_rank() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, waits, _ = taken_over(desk)
    for _ in range(11):
        desk.at(desk.now + 3_000)
        first.beat()
        waits.beat()
    again = standby(desk, "worker_1", host="10.0.0.9")
    lose(desk, waits)
    answer(again)
    lose(desk, again)
    assert slot(desk, "s0") == "worker_1"
    give_up(desk, "worker_1")
    assert job(desk).state is JobState.FAILED


def test_standby_that_is_given_up_ends_nothing() -> None:
    desk = Desk(RULES)
    training(desk, 10)
    one = standby(desk)
    lose(desk, one)
    give_up(desk, "s0")
    assert job(desk).state is JobState.RUNNING


def test_another_standby_takes_the_rank_whose_successor_is_given_up() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2))
    first, second = training(desk, 10)
    one = standby(desk)
    lose(desk, second)
    give_up(desk, "worker_1.2")
    assert job(desk).state is JobState.INTERRUPTED
    answer(one, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert one.follow().rank == 1


# --- whose standby may still come back ------------------------------------------------------------------------------------


def test_job_waits_for_a_standby_that_may_come_back() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    one = standby(desk)
    one.die()
    second.die()
    give_up(desk, "worker_1")
    assert job(desk).state is JobState.INTERRUPTED
    one.register()
    answer(one, 10)
    first.ready(checkpoint(10, path="worker_0/10"))
    assert one.follow().rank == 1


def test_job_ends_when_that_standby_does_not() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    one = standby(desk)
    one.die()
    second.die()
    give_up(desk, "worker_1")
    desk.at(desk.now + 600)
    assert job(desk).state is JobState.FAILED


def test_who_came_back_is_not_given_up_any_more() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 10)
    one = standby(desk)
    second.die()
    give_up(desk, "worker_1")
    second.register()
    first.ready(checkpoint(10, path="worker_0/10"))
    second.ready(checkpoint(10, path="worker_1/10"))
    for worker in (first, second):
        worker.follow()
    lose(desk, one)
    lose(desk, second)
    assert job(desk).state is JobState.INTERRUPTED, "its launcher may start it again"
    assert row(desk, "worker_1").rank == 1


def test_standby_that_is_given_up_before_it_came_keeps_no_job_from_beginning() -> None:
    desk = Desk(RULES)
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    first.register()
    exited = m.Exited(node_id=NodeId("s0"), pid=1, reason="exit code 1", gives_up=True, standby=True)
    desk.say(desk.connect(), exited)
    assert job(desk).state is JobState.FORMING
    second.register()
    first.ready()
    second.ready()
    assert job(desk).state is JobState.RUNNING


def test_worker_that_is_given_up_before_it_came_ends_a_job_that_forms() -> None:
    desk = Desk(RULES)
    Worker(desk, "worker_0").register()
    give_up(desk, "worker_1")
    assert job(desk).state is JobState.FAILED


def test_standby_that_is_given_up_in_the_place_of_one_that_had_a_rank_leaves_that_rank_to_nobody() -> None:
    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 10)
    lose(desk, waits)
    exited = m.Exited(node_id=NodeId("s0.2"), pid=1, reason="exit code 1", gives_up=True, standby=True)
    desk.say(desk.connect(), exited)
    assert job(desk).state is JobState.FAILED


def test_end_of_a_wait_names_who_did_not_take_the_rank_and_why() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=10, topology_timeout_ms=3_000))
    _, second = training(desk, 10)
    waiting = [standby(desk, f"s{number}") for number in range(10)]
    lose(desk, second)
    for one in waiting:
        answer(one)
    desk.at(desk.now + 3_000)
    [why] = reasons(desk, EventKind.JOB_FAILED)
    lacks = "it cannot read the rank's file of step 10; its newest is none"
    assert f"; s0 did not take the rank of worker_1: {lacks}; s1 did not take" in why
    assert f"; s7 did not take the rank of worker_1: {lacks}; and 2 more declined; first failure" in why


def test_end_of_a_wait_names_nobody_who_declined_a_rank_that_another_has_taken() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=2, topology_timeout_ms=3_000))
    _, second = training(desk, 10)
    poor, rich = standby(desk, "s0"), standby(desk, "s1")
    lose(desk, second)
    answer(poor)
    answer(rich, 10)
    desk.at(desk.now + 3_000)
    [why] = reasons(desk, EventKind.JOB_FAILED)
    assert "did not take" not in why
