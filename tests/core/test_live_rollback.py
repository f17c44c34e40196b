"""Live rollback as the scheduler sees it: which plan it makes of what survived, and when the ranks may begin."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.ids import Generation, Rank, ResumeToken
from recovery.core.records import (
    EventKind,
    GenerationRecord,
    JobRecord,
    JobState,
    LiveSourceRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.stimuli import MessageReceived
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.survivors import (
    STRUCTURE,
    could_not,
    follow,
    in_memory,
    live_generation,
    lose,
    ready_with,
    reasons,
    took,
)


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=3, rejoin_window_ms=0, live_rollback=True))


def _trained(desk: Desk) -> tuple[Worker, Worker, Worker]:
    """Three ranks that all hold step 20; the last one has died and come back with its files."""
    first, second, third = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for worker in (first, second, third):
        worker.save(20)
    return first, second, lose(desk, third)


def _file(worker: Worker, step: int = 20) -> m.HeldCheckpoint:
    return checkpoint(step, path=f"{worker.node_id}/{step}")


# --- where the plan goes ------------------------------------------------------------------------------------------------


def test_all_go_on_from_the_memory_that_is_furthest(desk: Desk) -> None:
    first, second, third = _trained(desk)
    ready_with(first, in_memory(24), _file(first))
    ready_with(second, in_memory(25), _file(second))
    ready_with(third, None, _file(third))
    plan = first.last(m.Rollback)
    for plan in (worker.last(m.Rollback) for worker in (first, second, third)):
        assert (plan.step, plan.epoch, plan.step_in_epoch) == (25, 3, 5)
        assert (plan.live_rank, plan.live_structure, plan.path, plan.digest) == (1, STRUCTURE, "", "")
        # What lies on all disks is still there to go back to, and no more is promised than that.
        assert (plan.committed_step, plan.durable_step) == (20, None)
    assert desk.row(LiveSourceRecord) == [
        LiveSourceRecord(run=plan.run, generation=plan.generation, rank=Rank(1), structure=STRUCTURE)
    ]
    assert reasons(desk)[-1] == "rank 1 holds step 25 in its memory, and gives it to all"
    assert desk.machine.state.checkpoints.committed_step == 20


def test_what_is_written_in_a_live_generation_is_committed_as_ever(desk: Desk) -> None:
    workers = live_generation(desk)
    for worker in workers:
        took(worker)
    for worker in workers:
        worker.save(30)
    assert workers[2].last(m.Committed).step == 30


@pytest.mark.parametrize("step", [19, 20])
def test_a_checkpoint_that_is_as_new_is_gone_back_to(desk: Desk, step: int) -> None:
    workers = _trained(desk)
    for worker in workers:
        ready_with(worker, in_memory(step) if worker is workers[0] else None, _file(worker))
    plan = workers[0].last(m.Rollback)
    assert (plan.step, plan.live_rank, plan.path) == (20, None, "worker_0/20")
    assert desk.row(LiveSourceRecord) == []
    assert reasons(desk)[-1] == (
        f"every rank holds step 20; no live rollback: rank 0: its state of step {step} is not newer than the checkpoint"
    )


def test_the_plan_says_of_each_survivor_why_its_memory_is_of_no_use(desk: Desk) -> None:
    first, second, third = _trained(desk)
    ready_with(first, None, _file(first), not_live="an optimizer had begun step 26")
    ready_with(second, None, _file(second), not_live="a parameter was changed behind step 25")
    ready_with(third, None, _file(third))
    assert first.last(m.Rollback).live_rank is None
    assert reasons(desk)[-1] == (
        "every rank holds step 20; no live rollback: rank 0: an optimizer had begun step 26, "
        "rank 1: a parameter was changed behind step 25"
    )


def test_what_survives_is_gone_on_from_where_no_step_is_common_any_more(desk: Desk) -> None:
    first, second, third = _trained(desk)
    ready_with(first, in_memory(25), _file(first))
    ready_with(second, in_memory(25), _file(second))
    # Its disk is gone.
    ready_with(third, None)
    plan = third.last(m.Rollback)
    assert (plan.step, plan.live_rank, plan.committed_step) == (25, 0, 0)
    for worker in (first, second, third):
        worker.follow()
    # That there was something to lose is not forgotten by that.
    third = lose(desk, third)
    ready_with(first, None)
    ready_with(second, None)
    ready_with(third, None)
    assert first.last(m.JobEnded).outcome is m.JobOutcome.NO_COMMON_CHECKPOINT


def test_a_state_of_a_rolled_back_suffix_is_no_candidate(desk: Desk) -> None:
    first, second, third = _trained(desk)
    for worker in (first, second, third):
        ready_with(worker, None, _file(worker))
    assert follow((first, second, third)).step == 20
    third = lose(desk, third)
    # It says what it had in generation 1; generation 2 began below that.
    ready_with(first, in_memory(25, generation=1), _file(first))
    ready_with(second, in_memory(22, generation=2), _file(second))
    ready_with(third, None, _file(third))
    plan = third.last(m.Rollback)
    assert (plan.step, plan.live_rank) == (22, 1)
    follow((first, second, third))
    third = lose(desk, third)
    ready_with(first, in_memory(25, generation=1), _file(first))
    ready_with(second, None, _file(second), not_live="torn")
    ready_with(third, None, _file(third))
    assert third.last(m.Rollback).live_rank is None
    assert reasons(desk)[-1].endswith(
        "no live rollback: rank 0: its state of step 25 was rolled back, rank 1: torn"
    )


def test_a_state_of_another_run_is_no_candidate(desk: Desk) -> None:
    workers = _trained(desk)
    for worker in workers:
        ready_with(worker, in_memory(25, run=2), _file(worker))
    assert workers[0].last(m.Rollback).live_rank is None
    assert "rank 0: its state of step 25 is of run 2" in reasons(desk)[-1]


def test_nobody_is_asked_for_its_memory_unless_it_is_asked_for() -> None:
    desk = Desk(Rules(worker_count=3, rejoin_window_ms=0))
    workers = _trained(desk)
    for worker in workers:
        ready_with(worker, in_memory(25), _file(worker))
    assert (workers[0].last(m.Rollback).step, workers[0].last(m.Rollback).live_rank) == (20, None)
    assert reasons(desk)[-1] == "every rank holds step 20"


def test_a_job_that_forms_goes_to_nobodys_memory(desk: Desk) -> None:
    workers = [Worker(desk, f"worker_{number}") for number in range(3)]
    for worker in workers:
        worker.register()
    for worker in workers:
        ready_with(worker, in_memory(25))
    assert (workers[0].last(m.Rollback).step, workers[0].last(m.Rollback).live_rank) == (0, None)
    assert reasons(desk) == ["no rank has a checkpoint of this run yet"]


# --- nobody trains on before all have said the same ---------------------------------------------------------------------


def test_all_may_begin_once_the_last_has_said_the_same(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    assert took(first) == took(third) == []
    assert first.hears(m.StateAgreed) == second.hears(m.StateAgreed) == 0
    # Said twice it is no second rank.
    assert took(first) == []
    assert took(second) == [m.StateAgreed(generation=Generation(2))]
    assert first.hears(m.StateAgreed) == third.hears(m.StateAgreed) == 1
    assert len(reasons(desk, EventKind.STATE_LOADED)) == 3


def test_who_says_it_again_has_not_heard_the_answer_and_hears_it_alone(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    for worker in (first, second, third):
        took(worker)
    assert took(second) == [m.StateAgreed(generation=Generation(2))]
    assert (first.hears(m.StateAgreed), second.hears(m.StateAgreed)) == (1, 2)
    assert len(reasons(desk, EventKind.STATE_LOADED)) == 3


def test_who_is_away_when_all_agree_hears_it_when_it_says_it_again(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    took(first)
    desk.lose(first.connection)
    took(second)
    took(third)
    assert (second.hears(m.StateAgreed), third.hears(m.StateAgreed)) == (1, 1)
    first.register()
    assert took(first) == [m.StateAgreed(generation=Generation(2))]


def test_different_contents_interrupt_the_generation(desk: Desk) -> None:
    workers = live_generation(desk)
    first, second, third = workers
    took(first)
    took(second, "another")
    why = "rank 0 and rank 1 hold different states of step 25 after they took it from rank 0"
    for worker in workers:
        assert worker.last(m.Interrupt) == m.Interrupt(generation=Generation(2), reason=why)
    assert why in reasons(desk, EventKind.STATE_LOADED)
    took(third)
    assert not any(worker.hears(m.StateAgreed) for worker in workers)
    # The same step is not tried again, whoever offers it; the next older one is.
    ready_with(first, in_memory(25, generation=2))
    ready_with(second, in_memory(24))
    ready_with(third, None)
    assert (first.last(m.Rollback).step, first.last(m.Rollback).live_rank) == (24, 1)


def test_who_says_another_content_than_before_interrupts_too(desk: Desk) -> None:
    workers = live_generation(desk)
    for worker in workers:
        took(worker)
    took(workers[1], "another")
    assert workers[0].hears(m.StateAgreed) == 1
    assert workers[0].last(m.Interrupt).generation == 2


def test_what_is_said_of_another_generation_or_after_its_end_counts_nowhere(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    old = m.StateLoaded(generation=Generation(1), step=25, content="of the generation before")
    assert first.send(old) == []
    took(first)
    took(second)
    third.die()
    desk.at(desk.now + 1_000)
    took(second, "another")
    assert reasons(desk, EventKind.STATE_LOADED) == ["", ""]
    assert desk.machine.state.live.refused == set()


def test_a_state_from_a_file_is_compared_with_nothing(desk: Desk) -> None:
    workers = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for number, worker in enumerate(workers):
        said = m.StateLoaded(
            generation=Generation(1), step=0, content=str(number), not_live="a part is its rank's own"
        )
        assert worker.send(said) == []
    assert desk.row(JobRecord)[0].state is JobState.RUNNING
    details = {event.details for event in desk.events if event.kind is EventKind.STATE_LOADED}
    assert details == {"no live rollback: a part is its rank's own"}


def test_what_was_taken_before_counts_in_no_later_generation(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    took(first)
    took(second)
    third = lose(desk, third)
    ready_with(first, in_memory(25))
    ready_with(second, in_memory(25))
    ready_with(third, None)
    assert follow((first, second, third)).generation == 3
    # Other words than before, and not yet those of all.
    assert took(third, "another digest") == took(second, "another digest") == []
    assert second.last(m.Interrupt).generation == 2
    assert took(first, "another digest") == [m.StateAgreed(generation=Generation(3))]


# --- a state that cannot be given ---------------------------------------------------------------------------------------


def test_a_source_that_fails_costs_its_step_and_then_the_checkpoint_is_left(desk: Desk) -> None:
    first, second, third = _trained(desk)

    def stopped(of_first: int, of_second: int) -> m.Rollback:
        ready_with(first, in_memory(of_first, generation=1), _file(first))
        ready_with(second, in_memory(of_second, generation=1), _file(second))
        ready_with(third, None, _file(third))
        return follow((first, second, third))

    assert stopped(25, 24).live_rank == 0
    could_not(first)
    assert first.last(m.Received).request_id
    assert third.last(m.Interrupt).reason == (
        "worker_0 has not taken the state of step 25: a parameter was changed since"
    )
    [bad] = [event for event in desk.events if event.kind is EventKind.CHECKPOINT_INVALID]
    assert (bad.step, bad.details, bad.reason) == (25, "live:0", "a parameter was changed since")
    plan = stopped(25, 24)
    assert (plan.step, plan.live_rank) == (24, 1)
    could_not(third, "there is no room for it")
    plan = stopped(25, 24)
    assert (plan.step, plan.live_rank) == (20, None)
    assert reasons(desk)[-1] == (
        "every rank holds step 20; no live rollback: rank 0: its state of step 25 was rolled back, "
        "rank 1: the state of step 24 could not be taken before"
    )
    # The files are as good as they were.
    assert plan.path == "worker_0/20"


def test_a_step_that_was_refused_and_is_trained_again_is_gone_on_from(desk: Desk) -> None:
    first, second, third = workers = live_generation(desk)
    could_not(first)
    for worker in workers:
        ready_with(worker, None, not_live="torn")
    assert follow(workers).step == 0
    third = lose(desk, third)
    # Other bits than those that could not be taken, perhaps: the plan before began below them.
    ready_with(first, in_memory(25, generation=3))
    ready_with(second, in_memory(25, generation=1))
    ready_with(third, None)
    assert (first.last(m.Rollback).step, first.last(m.Rollback).live_rank) == (25, 0)


def test_nobody_hears_that_its_failure_is_known_before_its_generation_has_ended(desk: Desk) -> None:
    # A scheduler that is killed in between would wait for ranks that wait for it: who has its answer does not say it again.
    source = live_generation(desk)[0]
    bad = m.CheckpointInvalid(
        request_id=source.request(), generation=Generation(2), step=25, path="live:0", reason="changed"
    )
    effects = desk.machine.handle(MessageReceived(source.connection, bad, "", ResumeToken("x")), desk.now)
    written: list[object] = []
    for effect in effects:
        if isinstance(effect, Persist):
            written += effect.records
            if any(isinstance(one, Answer) and isinstance(one.message, m.Received) for one in effect.then):
                break
    [ended] = [one for one in written if isinstance(one, GenerationRecord)]
    assert ended.ended


def test_a_failure_that_is_said_twice_is_answered_twice(desk: Desk) -> None:
    workers = live_generation(desk)
    could_not(workers[1])
    could_not(workers[1])
    assert workers[1].hears(m.Received) >= 2
    assert desk.machine.state.live.refused == {25}
    assert desk.row(JobRecord)[0].state is JobState.INTERRUPTED
