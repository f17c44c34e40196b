"""What belongs to a generation, run or moment that is over counts nowhere. Each test was missed by a planted bug."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId, ResumeToken
from recovery.core.policy.backoff import next_dial_ms
from recovery.core.records import EventKind, JobRecord, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import Send
from recovery.core.scheduler.stimuli import MessageReceived
from tests.core.desk import Desk, Worker, checkpoint, running_workers


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2, rejoin_window_ms=0))


def _state(desk: Desk) -> JobState:
    return desk.row(JobRecord)[0].state


def _second_generation(desk: Desk) -> tuple[Worker, Worker]:
    """The first worker was done when the second died; both follow the plan that came of it."""
    first, second = running_workers(desk)
    first.done()
    second.die()
    desk.at(desk.now + 1_000)
    again = Worker(desk, "worker_1")
    again.register()
    for worker in (first, again):
        worker.ready()
    for worker in (first, again):
        worker.follow()
    assert first.generation == 2
    return first, again


def test_a_worker_that_was_done_must_be_done_again_after_a_rollback(desk: Desk) -> None:
    _, again = _second_generation(desk)
    again.done()
    assert _state(desk) is JobState.RUNNING


def test_a_done_of_the_generation_before_does_not_count(desk: Desk) -> None:
    for worker in _second_generation(desk):
        worker.generation = Generation(1)
        worker.done()
    assert _state(desk) is JobState.RUNNING


def test_a_broken_collective_of_the_generation_before_ends_nothing(desk: Desk) -> None:
    first, _ = _second_generation(desk)
    first.send(m.CollectiveFailed(generation=Generation(1), step=7, reason="Connection reset by peer"))
    assert _state(desk) is JobState.RUNNING


def test_no_plan_is_made_while_a_rank_has_not_come(desk: Desk) -> None:
    first = Worker(desk, "worker_0")
    first.register()
    assert first.ready() == [] or first.hears(m.Rollback) == 0
    assert _state(desk) is JobState.FORMING


def test_checkpoints_of_the_run_before_are_no_place_to_go_back_to(desk: Desk) -> None:
    before = running_workers(desk)
    for worker in before:
        worker.done()
    for worker in before:
        worker.die()
    desk.restart()
    workers = [Worker(desk, name) for name in ("worker_0", "worker_1")]
    for worker in workers:
        assert isinstance(worker.register(), m.Admitted)
    for worker in workers:
        worker.ready(checkpoint(100, run=1))
    assert workers[0].last(m.Rollback).run == 2
    assert workers[0].last(m.Rollback).step == 0


def test_a_restarted_scheduler_remembers_that_there_was_something_to_lose(desk: Desk) -> None:
    workers = running_workers(desk)
    for worker in workers:
        worker.save(20)
    desk.restart()
    for worker in workers:
        worker.register()
    workers[1].die()
    desk.at(desk.now + 1_000)
    relaunched = Worker(desk, "worker_1")
    relaunched.register()
    # Whoever cleaned up the disks did so while the scheduler was away.
    workers[0].ready()
    relaunched.ready()
    assert workers[0].last(m.JobEnded).outcome is m.JobOutcome.NO_COMMON_CHECKPOINT


def test_nobody_hears_of_the_end_before_it_is_written(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    last = m.Done(request_id=RequestId("last"), generation=Generation(1), step=100)
    effects = desk.machine.handle(MessageReceived(second.connection, last, "", ResumeToken("x")), desk.now)
    assert [effect for effect in effects if isinstance(effect, Send)] == []


def test_a_request_sent_twice_has_one_effect_and_the_same_answer(desk: Desk) -> None:
    first, _ = running_workers(desk)
    failure = m.Failure(
        request_id=RequestId("once"), generation=Generation(1), step=7, error="ValueError: x", traceback=""
    )
    assert first.send(failure) == first.send(failure)
    assert desk.kinds().count(EventKind.NODE_FAILED) == 1


def test_a_resume_token_is_stored_as_a_digest_only(desk: Desk) -> None:
    first, _ = running_workers(desk)
    assert first.token
    assert not any(first.token in repr(row) for row in desk.rows.values())


def test_dials_are_spread_over_half_of_the_wait() -> None:
    rules = Rules(worker_count=2)
    assert next_dial_ms(4, 0.0, rules) * 2 == pytest.approx(next_dial_ms(4, 0.999_999, rules), abs=2)
