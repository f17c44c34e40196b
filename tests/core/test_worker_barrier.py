"""A worker that is asked to end asks for its rank to be taken over; every worker stops at a step when asked, and answers where it is."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import (
    Depart,
    GoOn,
    HandedOver,
    NotHandedOver,
    Position,
    SaveAt,
)
from recovery.core.effects import Exit, Log
from recovery.core.ids import Generation, RequestId
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.barrier import ANSWER_MS
from recovery.core.worker.stimuli import WorkerTimer
from recovery.core.worker.transitions import WorkerState
from tests.core.driven_worker import DrivenWorker, plan

ONE = Generation(1)
ASKED = s.DepartAsked(RequestId("d"), "SIGTERM")


def _asked(driven: DrivenWorker) -> bool:
    driven.handle(ASKED)
    return bool(driven.sent(Depart))


def _leaves(driven: DrivenWorker) -> bool:
    return we.LeaveAsAsked() in driven.effects


def test_a_worker_that_trains_asks_and_trains_on() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED, at=1_000)
    assert driven.sent(Depart) == [Depart(request_id=RequestId("d"), reason="SIGTERM")]
    assert driven.effects_of(we.SetTimer) == [we.SetTimer(WorkerTimer.DEPART, 1_000 + ANSWER_MS)]
    assert driven.machine.state is WorkerState.TRAINING


@pytest.mark.parametrize(
    "what", ["outside", "idle", "stopping", "done", "disconnected", "without recovery", "0 s"]
)
def test_who_has_no_step_to_hand_over_leaves_at_once(what: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "without recovery": {"recovery_enabled": False},
        "0 s": {"drain_timeout_ms": 0},
    }
    driven = DrivenWorker(**changes.get(what, {}))
    if what == "idle":
        driven.admitted()
    elif what != "outside":
        driven.training()
    if what == "stopping":
        driven.receive(m.Interrupt(generation=ONE, reason="worker_1 lost"))
    if what == "done":
        driven.handle(s.TrainingDone(RequestId("e"), ONE, 100))
    if what == "disconnected":
        driven.handle(s.Disconnected("cut", 0.5))
    assert not _asked(driven)
    assert _leaves(driven)


def test_a_second_wish_to_end_is_not_answered_by_another_question() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    assert not _asked(driven)
    assert _leaves(driven)
    driven.receive(NotHandedOver(request_id=RequestId("d"), reason="no standby is ready"))
    assert not _leaves(driven), "the main thread is told once"


def test_it_leaves_when_the_scheduler_says_no_and_says_why() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    driven.receive(NotHandedOver(request_id=RequestId("other"), reason="x"))
    assert not _leaves(driven), "the answer to another question"
    driven.receive(NotHandedOver(request_id=RequestId("d"), reason="no standby is ready"))
    assert _leaves(driven)
    assert "no standby is ready" in driven.effects_of(Log)[0].text


def test_it_leaves_with_its_job_without_a_warning() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    driven.receive(NotHandedOver(request_id=RequestId("d"), reason="the job ends", job_ends=True))
    assert _leaves(driven)
    [said] = driven.effects_of(Log)
    assert (said.event, said.warning) == ("leaves_with_its_job", False)


def test_it_leaves_when_nobody_begins_and_later_when_nobody_ends() -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.handle(ASKED, at=1_000)
    driven.fire(WorkerTimer.DEPART, at=1_500)
    assert _leaves(driven)
    assert "the scheduler does not answer" in driven.effects_of(Log)[0].text
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.handle(ASKED, at=1_000)
    driven.receive(SaveAt(drain=1, generation=ONE, step=0), at=1_100)
    assert we.SetTimer(WorkerTimer.DEPART, 6_000) in driven.effects, "it has begun: the whole time counts"
    driven.fire(WorkerTimer.DEPART, at=6_000)
    assert _leaves(driven)
    assert "MS_DRAIN_TIMEOUT" in driven.effects_of(Log)[0].text
    assert driven.fire(WorkerTimer.DEPART, at=7_000) == []


def test_it_waits_as_long_as_the_end_of_the_job_may_take() -> None:
    """The launcher was asked by the same signal, a moment later."""
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.handle(ASKED, at=1_000)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7, wait_ms=5_000), at=1_100)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7, wait_ms=25_000), at=1_200)
    assert we.SetTimer(WorkerTimer.DEPART, 26_200 + ANSWER_MS) in driven.effects
    driven.fire(WorkerTimer.DEPART, at=26_200 + ANSWER_MS)
    assert _leaves(driven)


def test_a_lost_connection_ends_what_was_asked() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7))
    driven.handle(s.Disconnected("cut", 0.5))
    assert _leaves(driven)
    driven = DrivenWorker().training()
    driven.handle(s.Disconnected("cut", 0.5))
    assert not _leaves(driven)


def test_who_waits_at_a_step_is_let_go_when_it_is_admitted_again_or_has_waited_long_enough() -> None:
    """A scheduler that hangs may still hand the rank over, by what it was told before: a step that follows would be lost."""
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7), at=1_000)
    driven.handle(s.Disconnected("cut", 0.5), at=2_000)
    assert we.ResumeTraining() not in driven.effects
    driven.handle(s.Connected(), at=2_100)
    driven.admitted(resumed=True)
    assert we.ResumeTraining() in driven.effects
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7), at=1_000)
    driven.handle(s.Disconnected("cut", 0.5), at=2_000)
    driven.fire(WorkerTimer.DEPART, at=6_000 + ANSWER_MS)
    assert we.ResumeTraining() in driven.effects


def test_who_is_asked_to_end_between_two_generations_is_not_replaced_either() -> None:
    driven = DrivenWorker(abort_timeout_ms=1_000).training()
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 lost"), at=100)
    driven.handle(ASKED, at=200)
    assert _leaves(driven)
    driven.fire(WorkerTimer.ABORT, at=1_100)
    assert driven.effects_of(Exit)


def test_who_is_asked_to_stop_says_where_its_main_thread_is() -> None:
    driven = DrivenWorker().training()
    driven.receive(SaveAt(drain=3, generation=ONE, step=7))
    assert driven.effects_of(we.StopAt) == [we.StopAt(3, ONE, 7)]
    driven.handle(s.Positioned(ONE, 5, stops=True, step=7))
    assert driven.sent(Position) == [Position(drain=3, step=7, passed=5, stops=True)]
    driven.handle(s.Positioned(ONE, 7, step=7, obstacle="nothing saves"))
    assert driven.sent(Position) == [
        Position(drain=3, step=7, passed=7, stops=False, obstacle="nothing saves")
    ]


def test_who_comes_to_the_end_of_its_loop_before_the_step_that_was_asked_for_says_so() -> None:
    driven = DrivenWorker().training()
    assert driven.handle(s.Positioned(ONE, 6, is_over=True)) == [], "nobody has asked"
    driven.receive(SaveAt(drain=3, generation=ONE, step=7))
    driven.handle(s.Positioned(ONE, 6, stops=True, step=7, is_over=True))
    assert driven.sent(Position) == [Position(drain=3, step=7, passed=6, stops=True, is_over=True)]
    driven.handle(s.Positioned(ONE, 6, is_over=True))
    assert driven.sent(Position) == [Position(drain=3, step=7, passed=6, stops=False, is_over=True)]
    assert driven.handle(s.Positioned(Generation(2), 6, is_over=True)) == []


def test_an_obstacle_at_a_step_that_nobody_asks_for_is_no_answer() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.Positioned(ONE, 0, step=0, obstacle="nothing saves"))
    driven.receive(SaveAt(drain=3, generation=ONE, step=7))
    driven.handle(s.Positioned(ONE, 0, step=0, obstacle="nothing saves"))
    assert not driven.sent(Position)


def test_a_step_of_a_generation_that_is_over_or_not_begun_is_not_stopped_at() -> None:
    driven = DrivenWorker().training()
    assert driven.receive(SaveAt(drain=3, generation=Generation(2), step=7)) == []
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 lost"))
    assert driven.receive(SaveAt(drain=3, generation=ONE, step=7)) == []
    assert driven.receive(SaveAt(drain=3, generation=Generation(2), step=7)) == []


def test_a_drain_that_is_given_up_lets_go_of_its_own_stop_only() -> None:
    driven = DrivenWorker().training()
    driven.receive(SaveAt(drain=3, generation=ONE, step=7))
    assert driven.receive(GoOn(drain=2)) == []
    assert driven.receive(GoOn(drain=3)) == [we.ResumeTraining()]
    assert driven.receive(GoOn(drain=3)) == []


def test_who_was_handed_over_ends_as_if_a_signal_had_ended_it() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    driven.receive(HandedOver(reason="its rank is handed over at step 7"))
    assert driven.effects_of(Exit) == [Exit("STOPPED", "its rank is handed over at step 7")]
    assert driven.machine.state is WorkerState.LEAVING
    assert not driven.sent(m.Leave)


def test_who_joins_a_drain_has_its_whole_time_and_stays_where_it_waits() -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7), at=1_000)
    assert we.StopAt(1, ONE, 7) in driven.effects
    driven.handle(ASKED, at=1_100)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7), at=1_101)
    assert driven.effects == [we.SetTimer(WorkerTimer.DEPART, 6_100)]
    driven.receive(SaveAt(drain=1, generation=ONE, step=9), at=1_200)
    assert we.StopAt(1, ONE, 9) in driven.effects


def test_who_is_asked_to_end_while_it_waits_at_a_step_waits_there_no_longer_for_that() -> None:
    """The other ranks wait for it as long; what the scheduler had to say of that step was lost on the way."""
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7, leaves=True), at=1_000)
    driven.handle(ASKED, at=6_400)
    assert driven.sent(Depart), "the scheduler may have let go of it, and not be heard yet"
    assert we.SetTimer(WorkerTimer.DEPART, 6_000 + ANSWER_MS) in driven.effects
    driven.fire(WorkerTimer.DEPART, at=6_000 + ANSWER_MS)
    assert _leaves(driven)
    assert "longer than 5 s" in driven.effects_of(Log)[0].text


def test_who_joins_a_drain_late_waits_at_the_step_no_longer_than_the_other_ranks() -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7, leaves=True), at=1_000)
    driven.handle(ASKED, at=5_000)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7, leaves=True), at=5_001)
    assert driven.effects == [we.SetTimer(WorkerTimer.DEPART, 6_000 + ANSWER_MS)]


@pytest.mark.parametrize("ends_training", [False, True], ids=["a drain", "the end of training"])
def test_who_was_asked_to_stop_before_it_was_asked_to_end_is_not_answered_by_that(
    ends_training: bool,
) -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7, ends_training=ends_training), at=1_000)
    driven.handle(ASKED, at=2_000)
    assert we.SetTimer(WorkerTimer.DEPART, 2_000 + ANSWER_MS) in driven.effects
    driven.fire(WorkerTimer.DEPART, at=2_000 + ANSWER_MS)
    assert _leaves(driven)
    assert "the scheduler does not answer" in driven.effects_of(Log)[0].text


def test_drain_of_a_generation_that_is_over_is_no_answer_to_a_new_wish() -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7))
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 left"))
    driven.handle(s.TrainingStopped(ONE, 7))
    driven.found()
    driven.receive(plan(2))
    driven.handle(ASKED, at=1_000)
    driven.fire(WorkerTimer.DEPART, at=1_500)
    assert "the scheduler does not answer" in driven.effects_of(Log)[0].text


def test_who_waits_at_a_step_lets_go_by_itself_when_the_scheduler_says_nothing_more() -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=0), at=1_000)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7), at=1_200)
    assert we.SetTimer(WorkerTimer.DEPART, 6_200 + ANSWER_MS) in driven.effects
    assert driven.fire(WorkerTimer.DEPART, at=6_200) == [], "the scheduler's word may be on its way"
    driven.fire(WorkerTimer.DEPART, at=6_200 + ANSWER_MS)
    assert we.ResumeTraining() in driven.effects
    assert not _leaves(driven)
    assert "longer than 5 s" in driven.effects_of(Log)[0].text
    assert driven.fire(WorkerTimer.DEPART, at=7_000) == []


def test_who_waits_at_a_step_waits_as_long_as_the_scheduler_does_whatever_its_own_setting_is() -> None:
    for own_ms in (0, 1_000, 60_000):
        driven = DrivenWorker(drain_timeout_ms=own_ms).training()
        driven.receive(SaveAt(drain=1, generation=ONE, step=7, wait_ms=9_000), at=1_000)
        assert driven.fire(WorkerTimer.DEPART, at=10_000) == []
        driven.fire(WorkerTimer.DEPART, at=10_000 + ANSWER_MS)
        assert we.ResumeTraining() in driven.effects
        assert "longer than 9 s" in driven.effects_of(Log)[0].text


def test_what_ended_with_its_generation_is_not_let_go_of_again() -> None:
    driven = DrivenWorker(drain_timeout_ms=5_000).training()
    driven.receive(SaveAt(drain=1, generation=ONE, step=7), at=1_000)
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 left"), at=1_100)
    driven.handle(s.TrainingStopped(ONE, 7))
    driven.found()
    driven.receive(plan(2), at=1_200)
    assert driven.fire(WorkerTimer.DEPART, at=6_000) == []


def test_who_is_asked_to_end_leaves_before_its_generation_ends_under_it() -> None:
    """A script replaces itself when it hears of the interrupt, and the program that follows knows of no signal."""
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    driven.receive(SaveAt(drain=1, generation=ONE, step=7))
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 lost"))
    told, stopped = (
        driven.effects.index(we.LeaveAsAsked()),
        driven.effects.index(driven.effects_of(we.Interrupt)[0]),
    )
    assert told < stopped
    assert "its generation is over" in driven.effects_of(Log)[0].text
    driven.receive(NotHandedOver(request_id=RequestId("d"), reason="no standby is ready"))
    assert not _leaves(driven), "the main thread is told once"


def test_who_left_otherwise_is_not_told_to_leave() -> None:
    driven = DrivenWorker().training()
    driven.handle(ASKED)
    driven.handle(s.TrainingRaised(RequestId("x"), ONE, 3, "ValueError: x", ""))
    assert not _leaves(driven)
    driven.receive(NotHandedOver(request_id=RequestId("d"), reason="no standby is ready"))
    assert not _leaves(driven)


def test_main_thread_that_was_told_to_leave_and_hangs_is_not_replaced() -> None:
    driven = DrivenWorker(abort_timeout_ms=1_000).training()
    driven.handle(ASKED, at=0)
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 lost"), at=100)
    driven.fire(WorkerTimer.ABORT, at=1_100)
    assert [one.code for one in driven.effects_of(Exit)] == ["STOPPED"]
    assert not driven.effects_of(we.ReplaceProcess)
    driven = DrivenWorker(abort_timeout_ms=1_000).training()
    driven.receive(m.Interrupt(generation=ONE, reason="worker_1 lost"), at=100)
    driven.fire(WorkerTimer.ABORT, at=1_100)
    assert driven.effects_of(we.ReplaceProcess), "nobody has asked this one to end"
