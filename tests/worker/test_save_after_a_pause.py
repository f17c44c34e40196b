"""A thread that saves asks before it renames: a process that was paused may have been replaced meanwhile."""

from __future__ import annotations

import threading

import pytest

from recovery.worker.training_control import Verdict
from tests.worker.test_training_control import WAIT_S, Training


def test_a_save_of_a_process_that_was_paused_waits_for_the_answer() -> None:
    training = Training()
    training.pause()

    with training.main_thread(lambda: training.said.append(f"ours {training.control.still_owns_rank()}")):
        assert training.asked.wait(WAIT_S), "it saved without asking"
        training.said.append("confirmed")
        training.control.confirm()

    assert training.said == ["asked", "confirmed", "ours True", "stepped"]


def test_a_pause_that_the_other_thread_noticed_counts_for_the_save_too() -> None:
    training = Training()
    training.pause()
    training.control.tick()
    answered = threading.Event()

    def ask() -> None:
        training.said.append(f"ours {training.control.still_owns_rank()}")
        answered.set()

    with training.main_thread(ask):
        assert not answered.is_set()
        training.control.finish(Verdict("FENCED", "a newer incarnation has its place"))

    assert training.said == ["asked", "ours False", "stepped"]


@pytest.mark.parametrize(("code", "ours"), [("FENCED", False), ("JOB_FAILED", True), ("", True)])
def test_only_who_has_lost_its_place_may_not_save_at_the_end(code: str, ours: bool) -> None:
    control = Training().control
    control.finish(Verdict(code, "it is over"))

    assert control.still_owns_rank() == ours


def test_the_end_of_a_generation_does_not_keep_a_save_from_its_name() -> None:
    training = Training()
    training.control.interrupt(1, "w1 lost")

    assert training.control.still_owns_rank()
    assert training.said == [], "nobody was paused"
