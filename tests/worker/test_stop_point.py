"""Whether a step is passed is decided once: a rank that said it would stop there does, and one that has passed it says so."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from recovery.errors import GenerationInterrupted
from recovery.worker.stop_step import StopPoint
from recovery.worker.training_control import Verdict
from tests.pace import wait_for
from tests.worker.test_training_control import Training


def _at(passed: int) -> StopPoint:
    point = StopPoint()
    point.begin(1, 0)
    assert all(point.passes(step) for step in range(1, passed + 1)), "nobody has asked"
    return point


def test_a_step_ahead_is_stopped_at_and_one_that_is_passed_is_not() -> None:
    point = _at(5)
    assert point.stop_at(1, 5) == (5, False)
    assert point.passes(6), "who was too late is not stopped either"
    assert point.stop_at(1, 8) == (6, True)
    assert (point.passes(7), point.passes(8)) == (True, False)
    assert point.stop_at(1, 0) == (7, False), "it waits at step 8 and has not passed it"


def test_training_that_begins_is_asked_to_stop_nowhere() -> None:
    point = _at(0)
    assert point.passes(0)
    assert point.stop_at(1, 1) == (0, True)
    assert point.passes(0), "step 1 has not ended"
    assert not point.passes(1)
    point.forget()
    assert point.passes(0)


def test_a_later_step_takes_the_place_of_the_one_that_is_waited_at() -> None:
    point = _at(5)
    point.stop_at(1, 6)
    assert not point.passes(6)
    assert point.stop_at(1, 8) == (5, True)
    assert (point.passes(6), point.passes(7), point.passes(8)) == (True, True, False)
    point.forget()
    assert point.passes(8)


def test_another_generation_has_no_step_in_common_with_this_one() -> None:
    point = _at(5)
    assert point.stop_at(2, 9) == (0, False)
    assert point.passes(9)
    point.stop_at(1, 12)
    point.begin(2, 10)
    assert point.passes(12), "who asked meant the generation before"


@pytest.fixture
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Racer:
    """A main thread that steps as fast as it can."""

    def __init__(self) -> None:
        self.point, self.reached, self.at = _at(0), 0, 0
        self.stopped, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        step = 1
        while self.point.passes(step) and not self._over.is_set():
            step += 1
            self.at = step
        self.reached = step
        self.stopped.set()

    def is_over(self, stop: int) -> bool:
        """Has it stopped, or gone past its stop?"""
        return self.stopped.is_set() or self.at > stop

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.mark.usefixtures("_switching_often")
def test_between_two_threads_nobody_passes_a_step_at_which_it_was_to_stop() -> None:
    """Whoever asks names the very next step."""
    for _ in range(30):
        racer = Racer()
        step, stops = 0, False
        while not stops:
            passed, _ = racer.point.stop_at(1, 0)
            step = passed + 1
            passed, stops = racer.point.stop_at(1, step)
            assert stops == (passed < step), "it says what it does"
        wait_for(partial(racer.is_over, step), "the end of the race")
        racer.end()
        assert racer.reached == step


def _stopped(training: Training) -> None:
    assert not training.control.stop_point.passes(11)
    training.said.append("waits")
    training.control.await_go_on(1, 11)


def test_the_main_thread_waits_at_the_step_until_it_is_let_go() -> None:
    training = Training()
    assert training.control.stop_at(1, 11) == (10, True)
    with training.main_thread(lambda: _stopped(training)):
        wait_for(lambda: training.said, "wait at the step")
        training.control.let_go()
    assert training.said == ["waits", "stepped"]


def test_a_step_further_ahead_lets_it_go_on_to_that_one() -> None:
    training = Training()
    training.control.stop_at(1, 11)
    with training.main_thread(lambda: _stopped(training)):
        wait_for(lambda: training.said, "wait at the step")
        assert training.control.stop_at(1, 13) == (10, True)
    assert training.said == ["waits", "stepped"]
    assert not training.control.stop_point.passes(13)


@pytest.mark.parametrize("how", ["interrupt", "verdict"])
def test_the_end_of_the_generation_ends_the_wait(how: str) -> None:
    training = Training()
    training.control.stop_at(1, 11)
    with training.main_thread(lambda: _stopped(training)):
        wait_for(lambda: training.said, "wait at the step")
        if how == "interrupt":
            training.control.interrupt(1, "worker_1 left")
        else:
            training.control.finish(Verdict("STOPPED", "handed over"))
    assert training.said[0] == "waits"
    assert training.said[1].startswith("interrupted: ")


def test_a_wait_that_is_interrupted_raises_in_the_main_thread() -> None:
    training = Training()
    training.control.stop_at(1, 11)
    training.control.interrupt(1, "worker_1 left")
    with pytest.raises(GenerationInterrupted):
        training.control.await_go_on(1, 11)


# --- the early end of training --------------------------------------------------------------------------------------------


def test_a_rank_that_has_asked_for_the_end_stays_at_its_step_until_a_later_one_is_named() -> None:
    point = _at(5)
    point.hold(6)
    assert not point.passes(6)
    point.forget()
    assert not point.passes(6), "a drain that is given up has nothing to do with it"
    assert point.stop_at(1, 6, ends_training=True) == (5, True)
    assert not point.saves
    assert not point.passes(6)
    assert point.stop_at(1, 8, ends_training=True) == (5, True)
    assert (point.passes(6), point.passes(7), point.passes(8)) == (True, True, False)


@pytest.mark.parametrize("named", ["before it asks", "while it waits"])
def test_a_rank_that_asks_for_the_end_behind_another_goes_on_to_the_step_of_all(named: str) -> None:
    point = _at(5)
    if named == "before it asks":
        assert point.stop_at(1, 7, ends_training=True) == (5, True)
        point.hold(6)
    else:
        point.hold(6)
        assert not point.passes(6)
        assert point.end_at(1, 7) == 0
    assert (point.passes(6), point.passes(7)) == (True, False)


def test_a_rank_that_asks_for_the_end_while_another_departs_stays_there() -> None:
    point = _at(5)
    assert point.stop_at(1, 7) == (5, True)
    point.hold(6)
    assert not point.passes(6)


def test_training_ends_at_a_step_that_is_not_passed_and_one_that_is_is_said() -> None:
    point = _at(5)
    assert point.end == 0
    assert point.end_at(2, 9) == 0, "of another generation"
    assert point.end == 0
    assert point.end_at(1, 5) == 5
    assert point.end == 0
    assert point.end_at(1, 7) == 0
    assert (point.passes(6), point.passes(7), point.end) == (True, False, 7)
    point.stop_at(1, 9)
    assert not point.passes(7), "what is asked for behind it changes nothing"
    assert point.end_at(1, 7) == 0


def test_who_has_come_to_the_end_of_its_loop_has_passed_also_the_step_at_which_it_was_to_stop() -> None:
    point = _at(5)
    point.end_at(1, 6)
    assert not point.passes(6)
    assert (point.stop_at(1, 0), point.is_over) == ((5, False), False)
    point.leave_loop(6)
    assert (point.stop_at(1, 0), point.is_over) == ((6, False), True)
    point.enter_loop()
    assert not point.is_over
    point.leave_loop(6)
    point.begin(2, 6)
    assert not point.is_over


def test_a_plan_that_begins_where_training_ends_has_nothing_left() -> None:
    point = StopPoint()
    point.begin(3, 7, 7)
    assert point.end == 7
    assert point.end_at(3, 7) == 0, "said again, it is no step too late"
    point.begin(4, 7)
    assert point.end == 0
