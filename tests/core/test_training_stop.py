"""A script ends training: all ranks come to one step, where their loops end, and every later plan ends there."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import (
    GoOn,
    NotHandedOver,
    Position,
    SaveAt,
    StopTraining,
    TrainingEnds,
)
from recovery.core.ids import Generation
from recovery.core.records import EventKind, JobState, TrainingEndRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.barrier_ends import why_not
from tests.core.desk import Worker, checkpoint
from tests.core.drained import RULES, Drained
from tests.core.test_job_stop import GRACE_MS, said, stop

WHY = "the loss is low enough"


class Ended(Drained):
    """Two ranks that have step 10 and whose scripts end training."""

    def ask(self, worker: Worker, step: int, reason: str = WHY, *, generation: int = 1) -> None:
        worker.send(StopTraining(generation=Generation(generation), step=step, reason=reason))

    def ends(self, worker: Worker) -> TrainingEnds:
        return worker.last(TrainingEnds)

    def row(self) -> TrainingEndRecord:
        [row] = self.desk.row(TrainingEndRecord)
        return row

    def come_back(self, step: int) -> None:
        """The process of rank 1 leaves and its next one comes: a plan follows that goes to the step."""
        self.one.send(m.Leave(request_id=self.one.request(), reason="SIGTERM"))
        self.one.generation = Generation(0)
        assert isinstance(self.one.register(keep_token=False), m.Admitted)
        for worker in self.workers:
            worker.ready(checkpoint(step, path=f"{worker.node_id}/{step}"))
        for worker in self.workers:
            worker.follow()


@pytest.fixture
def ended() -> Ended:
    return Ended(standbys=0, rules=Rules(worker_count=2, drain_timeout_ms=5_000, rejoin_window_ms=1_000))


def test_where_all_ask_at_one_step_training_ends_with_it(ended: Ended) -> None:
    ended.ask(ended.zero, 14)
    asked = ended.asked(ended.zero)
    assert (asked.step, asked.ends_training) == (14, True)
    assert ended.row() == TrainingEndRecord(
        run=ended.desk.machine.state.job.run, step=14, reason=f"worker_0: {WHY}"
    )
    ended.ask(ended.one, 14, "another reason")
    assert ended.one.hears(SaveAt) == 1, "it joins"
    for worker in ended.workers:
        assert not worker.hears(TrainingEnds)
        ended.answer(worker, 13)
    for worker in ended.workers:
        assert ended.ends(worker) == TrainingEnds(
            generation=Generation(1), step=14, reason=f"worker_0: {WHY}"
        )
    [event] = [one for one in ended.desk.events if one.kind is EventKind.TRAINING_STOPPED]
    assert (event.step, event.reason) == (14, f"worker_0: {WHY}")
    assert not {EventKind.DRAIN_BEGUN, EventKind.DRAIN_ENDED} & set(ended.desk.kinds())
    for worker in ended.workers:
        worker.save(14)
        worker.done(14)
    assert ended.desk.machine.state.job.reason == (
        f"all 2 ranks are done at step 14: its script ended it there (worker_0: {WHY})"
    )


def test_where_one_asks_the_others_learn_of_a_step_that_none_has_passed(ended: Ended) -> None:
    ended.ask(ended.zero, 14, "")
    ended.answer(ended.zero, 13)
    ended.answer(ended.one, 14)
    assert [ended.asked(worker).step for worker in ended.workers] == [16, 16]
    for worker in ended.workers:
        ended.answer(worker, 14)
    assert [ended.ends(worker).step for worker in ended.workers] == [16, 16]
    assert ended.row().step == 16
    assert ended.ends(ended.zero).reason == "worker_0: session.stop()"


def test_who_says_that_it_cannot_save_is_asked_for_no_save(ended: Ended) -> None:
    ended.ask(ended.zero, 14)
    ended.answer(ended.zero, 13)
    at = ended.asked(ended.one)
    ended.one.send(Position(drain=at.drain, step=14, passed=13, stops=True, obstacle="nothing saves"))
    assert ended.ends(ended.one).step == 14


def test_without_recovery_a_script_ends_training_too() -> None:
    ended = Ended(standbys=0, rules=Rules(worker_count=2, recovery_enabled=False))
    ended.ask(ended.zero, 14)
    for worker in ended.workers:
        ended.answer(worker, 13)
    assert ended.ends(ended.one).step == 14


@pytest.mark.parametrize("how", ["too early", "rolled back", "standby", "again"])
def test_what_is_of_no_rank_of_this_generation_ends_nothing(how: str) -> None:
    ended = Ended(standbys=1)
    match how:
        case "too early":
            ended.ask(ended.zero, 14, generation=2)
        case "rolled back":
            ended.ask(ended.zero, 14, generation=0)
        case "standby":
            ended.ask(ended.standbys[0], 14)
        case _:
            ended.ask(ended.zero, 14)
            for worker in ended.workers:
                ended.answer(worker, 13)
            ended.ask(ended.one, 20)
            assert ended.one.hears(SaveAt) == 1
            assert ended.row().step == 14
            return
    assert not ended.zero.hears(SaveAt)
    assert ended.desk.row(TrainingEndRecord) == []


# --- somebody is away -------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_away_is_waited_for_and_asked_again(ended: Ended) -> None:
    ended.ask(ended.zero, 14)
    ended.answer(ended.zero, 13)
    ended.one.die()
    assert ended.is_in(BarrierState.AGREEING), "it may come back"
    ended.one.register()
    assert ended.asked(ended.one).step == 14, "what it has said, or has not, may be lost"
    assert ended.zero.hears(SaveAt) == 1
    assert not ended.one.hears(TrainingEnds)
    ended.answer(ended.one, 13)
    assert ended.ends(ended.zero).step == 14


def test_an_answer_from_before_a_reconnect_counts_no_more(ended: Ended) -> None:
    """The rank may have gone on meanwhile."""
    ended.ask(ended.zero, 14)
    ended.answer(ended.one, 13)
    ended.one.die()
    ended.one.register()
    ended.answer(ended.zero, 13)
    assert not ended.zero.hears(TrainingEnds)
    ended.answer(ended.one, 14)
    assert ended.asked(ended.zero).step == 16


def test_a_rank_that_was_not_there_yet_is_asked_again(ended: Ended) -> None:
    """It was still fetching what the plan goes back to, and an order of a generation that it is not in says nothing to it."""
    ended.ask(ended.zero, 14)
    ended.answer(ended.zero, 13)
    ended.zero.beat()
    ended.one.beat()
    ended.desk.at(1_000)
    assert (ended.zero.hears(SaveAt), ended.one.hears(SaveAt)) == (1, 2)
    ended.desk.at(2_000)
    assert ended.one.hears(SaveAt) == 3
    ended.answer(ended.one, 13)
    assert ended.ends(ended.one).step == 14
    ended.desk.at(4_000)
    assert ended.one.hears(SaveAt) == 3


def test_who_was_away_when_all_had_agreed_hears_it_when_it_is_back(ended: Ended) -> None:
    ended.ask(ended.zero, 14)
    ended.answer(ended.one, 13)
    ended.answer(ended.zero, 13)
    ended.one.die()
    ended.one.register()
    assert ended.ends(ended.one).step == 14


def test_a_scheduler_that_starts_again_ends_training_where_it_was_asked_for(ended: Ended) -> None:
    ended.ask(ended.zero, 14)
    ended.desk.restart()
    for worker in ended.workers:
        worker.register()
        assert ended.ends(worker).step == 14
    ended.ask(ended.zero, 14)
    assert not ended.zero.hears(SaveAt), "it has its answer"


# --- the generation ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agreed", [False, True])
def test_the_next_plan_says_where_training_ends(ended: Ended, agreed: bool) -> None:
    ended.ask(ended.zero, 14)
    if agreed:
        for worker in ended.workers:
            ended.answer(worker, 13)
    ended.come_back(10)
    for worker in ended.workers:
        plan = worker.last(m.Rollback)
        assert (plan.step, plan.ends_at, plan.ends_because) == (10, 14, f"worker_0: {WHY}")
    [_, made] = [one.reason for one in ended.desk.events if one.kind is EventKind.PLAN_MADE]
    assert made.endswith(f"training ends at step 14 (worker_0: {WHY})")
    if not agreed:
        assert not ended.zero.hears(TrainingEnds)


def test_a_plan_behind_the_step_that_was_asked_for_ends_where_it_begins(ended: Ended) -> None:
    """One asked, the others had passed that step, and all have saved a later one when one of them dies."""
    ended.ask(ended.zero, 14)
    for worker in ended.workers:
        worker.save(16)
    ended.come_back(16)
    assert ended.zero.last(m.Rollback).ends_at == 16
    assert ended.row().step == 16


def test_what_is_asked_for_when_the_generation_is_over_is_of_the_next_plan(ended: Ended) -> None:
    ended.zero.send(m.CollectiveFailed(generation=Generation(1), step=14, reason="cut"))
    assert ended.job is JobState.INTERRUPTED
    ended.ask(ended.zero, 14)
    assert not ended.zero.hears(SaveAt)
    ended.come_back(10)
    assert ended.zero.last(m.Rollback).ends_at == 14


def test_the_next_run_knows_nothing_of_it(ended: Ended) -> None:
    ended.ask(ended.zero, 14)
    for worker in ended.workers:
        ended.answer(worker, 13)
    for worker in ended.workers:
        worker.done(14)
    for worker in ended.workers:
        worker.die()
    ended.desk.at(ended.desk.now + 10_000)
    for worker in ended.workers:
        worker.generation = Generation(0)
    ended.desk.restart()
    for worker in ended.workers:
        assert isinstance(worker.register(keep_token=False), m.Admitted)
    for worker in ended.workers:
        worker.ready()
    assert ended.zero.last(m.Rollback).ends_at == 0
    assert ended.desk.machine.state.training_end is None


# --- beside a planned departure -------------------------------------------------------------------------------------------


def test_a_departure_that_is_under_way_is_given_up() -> None:
    ended = Ended(standbys=1)
    request = ended.depart()
    ended.ask(ended.zero, 14)
    assert ended.one.last(NotHandedOver).request_id == request
    assert ended.one.last(GoOn) == GoOn(drain=1)
    assert ended.asked(ended.one).drain == 2
    assert ended.outcome() == f"training ends (worker_0: {WHY})"
    assert why_not(ended.desk.machine.state, (), "") == f"training ends (worker_0: {WHY})"
    again = ended.depart()
    assert ended.one.last(NotHandedOver).request_id == again


def test_a_rank_that_is_being_handed_over_ends_its_generation_first() -> None:
    ended = Ended(standbys=1, rules=RULES)
    step = ended.handing_over()
    ended.ask(ended.zero, step)
    assert ended.row().step == step
    ended.take_over(ended.standbys[0], step)
    assert ended.zero.last(m.Rollback).ends_at == step


def test_a_launcher_that_asks_for_the_end_of_the_job_meanwhile_waits_until_that_step_is_saved(
    ended: Ended,
) -> None:
    ended.ask(ended.zero, 14)
    launcher = stop(ended.desk)
    for worker in ended.workers:
        ended.answer(worker, 13)
    assert ended.desk.tray[launcher] == []
    assert [ended.ends(worker).step for worker in ended.workers] == [14, 14]
    ended.zero.save(14)
    ended.zero.done(14)
    assert ended.desk.tray[launcher] == []
    ended.one.save(14)
    assert ended.desk.tray[launcher] == [said(14)]
    assert ended.outcome() == "saved at step 14, where the job ends"


def test_a_launcher_that_asks_for_the_end_of_the_job_meanwhile_waits_no_longer_than_it_may(
    ended: Ended,
) -> None:
    ended.ask(ended.zero, 14)
    launcher = stop(ended.desk)
    for worker in ended.workers:
        ended.answer(worker, 13)
        worker.beat()
    ended.desk.at(GRACE_MS)
    assert ended.desk.tray[launcher] == [said(10, "it took longer than MS_STOP_GRACE leaves for it, saving")]
    assert ended.row().step == 14


# --- the last epoch is over first ---------------------------------------------------------------------------------------------


def over(ended: Drained, worker: Worker, last: int) -> None:
    """The rank's loop has come to its end, behind this step."""
    at = ended.asked(worker)
    stops = at.step > last
    worker.send(Position(drain=at.drain, step=at.step, passed=last, stops=stops, is_over=True))


def test_a_stop_that_comes_behind_the_last_step_of_another_rank_is_no_stop_at_a_step_that_no_loop_has(
    ended: Ended,
) -> None:
    ended.ask(ended.zero, 20)
    ended.answer(ended.zero, 19)
    over(ended, ended.one, 20)
    assert [ended.asked(worker).step for worker in ended.workers] == [22, 22], "the asker trains to the end"
    ended.answer(ended.zero, 19)
    over(ended, ended.one, 20)
    assert [ended.ends(worker).step for worker in ended.workers] == [22, 22], "and waits nowhere"
    assert EventKind.TRAINING_STOPPED not in ended.desk.kinds()
    for worker in ended.workers:
        worker.save(20)
        worker.done(20)
    assert ended.desk.machine.state.job.reason == "all 2 ranks are done at step 20"


@pytest.mark.parametrize("when", ["over", "behind its last step", "in its last step"])
def test_a_launcher_waits_for_the_last_step_where_training_was_to_end_behind_it(
    ended: Ended, when: str
) -> None:
    """The loops end at step 20, and an evaluation follows them: no step 21 or 22 is saved, ever."""
    ended.ask(ended.zero, 19 if when == "in its last step" else 20)
    launcher = stop(ended.desk)
    ended.answer(ended.zero, 18 if when == "in its last step" else 19)
    if when == "over":
        over(ended, ended.one, 20)
        ended.answer(ended.zero, 19)
        over(ended, ended.one, 20)
    else:
        for passed in (19, 20) if when == "in its last step" else (20, 20):
            ended.answer(ended.one, passed)
        ended.answer(ended.zero, 19)
    assert ended.ends(ended.one).step > 20
    for worker in ended.workers:
        over(ended, worker, 20)
    assert [ended.asked(worker).step for worker in ended.workers] == [20, 20]
    ended.zero.save(20)
    assert ended.desk.tray[launcher] == []
    ended.one.save(20)
    assert ended.desk.tray[launcher] == [said(20)]
    assert ended.outcome() == "saved at step 20, where the job ends"
