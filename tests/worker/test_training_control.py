"""Where the two threads of a worker meet: no step while nobody knows whether this incarnation is still the one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import Rollback
from recovery.errors import GenerationInterrupted
from recovery.worker.training_control import TrainingControl, Verdict

WAIT_S = 60.0
PAUSE_LIMIT_MS = 100_000


class Training:
    """A training control in generation 1, and the order in which things happened."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.asked = threading.Event()
        self.control = TrainingControl(pause_limit_ms=PAUSE_LIMIT_MS, on_pause=self._ask)
        self.control.open(plan(committed_step=10))

    def _ask(self, paused_ms: int) -> None:
        self.said.append("asked" if paused_ms > PAUSE_LIMIT_MS else f"asked after {paused_ms} ms")
        self.asked.set()

    def pause(self) -> None:
        """The connection's thread has not run for longer than the limit."""
        self.control.tick_ms -= 2 * PAUSE_LIMIT_MS

    @contextmanager
    def main_thread(self, work: Callable[[], object]) -> Iterator[None]:
        """Another thread that does `work`, which has ended when the block ends."""

        def run() -> None:
            try:
                work()
                self.said.append("stepped")
            except GenerationInterrupted as error:
                self.said.append(f"interrupted: {error.reason}")
            # Who waits for the question in vain sees that there is none.
            self.asked.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield
        thread.join(WAIT_S)
        assert not thread.is_alive(), "it waits for ever"


def plan(*, committed_step: int) -> Rollback:
    return Rollback(
        generation=Generation(1),
        run=RunId(1),
        step=committed_step,
        epoch=1,
        step_in_epoch=committed_step,
        rank=Rank(0),
        world_size=1,
        local_rank=0,
        local_world_size=1,
        path="",
        digest="",
        committed_step=committed_step,
        because="",
    )


def test_a_process_that_was_paused_steps_on_only_when_its_place_is_confirmed() -> None:
    training = Training()
    training.pause()

    with training.main_thread(lambda: training.control.check(1)):
        assert training.asked.wait(WAIT_S), "it stepped without asking"
        training.said.append("confirmed")
        training.control.confirm()

    assert training.said == ["asked", "confirmed", "stepped"]


def test_a_pause_that_both_threads_notice_is_asked_about_once() -> None:
    training = Training()
    training.pause()

    training.control.tick()
    training.pause()
    training.control.tick()

    assert training.said == ["asked"]
    training.control.confirm()
    training.pause()
    training.control.tick()
    assert training.said == ["asked", "asked"], "the next pause is another question"


def test_a_process_that_lost_its_place_while_it_was_paused_never_steps() -> None:
    training = Training()
    training.pause()

    with training.main_thread(lambda: training.control.check(1)):
        assert training.asked.wait(WAIT_S), "it stepped without asking"
        training.control.finish(Verdict("FENCED", "a newer incarnation has its place"))

    assert training.said == ["asked", "interrupted: a newer incarnation has its place"]


def test_nobody_asks_about_a_pause_that_is_within_the_limit() -> None:
    training = Training()

    training.control.tick()
    training.control.check(1)

    assert training.said == []


@pytest.mark.parametrize("ends", ["interrupt", "plan of a later one", "end of the process"])
def test_who_waits_for_the_end_of_its_generation_goes_on_by_whatever_says_it(ends: str) -> None:
    training = Training()

    with training.main_thread(lambda: training.control.await_interrupt(1)):
        assert training.said == []
        if ends == "interrupt":
            training.control.interrupt(1, "1 lost")
        elif ends == "end of the process":
            training.control.finish(Verdict("FENCED", "a newer incarnation has its place"))
        else:
            training.control.open(msgspec.structs.replace(plan(committed_step=10), generation=Generation(2)))

    assert training.said == ["stepped"]


def test_the_two_newest_committed_steps_are_remembered_and_a_repeat_changes_neither() -> None:
    control = Training().control

    assert (control.previous_durable_step, control.committed_step) == (0, 10)
    control.note_committed(20)
    assert (control.previous_durable_step, control.committed_step) == (10, 20)
    control.note_committed(20)
    assert (control.previous_durable_step, control.committed_step) == (10, 20)


def test_steps_in_memory_let_no_file_on_the_disk_go() -> None:
    control = Training().control

    control.note_committed(20, durable_step=10)
    assert (control.previous_durable_step, control.committed_step) == (0, 20)
    control.note_committed(30, durable_step=15)
    assert (control.previous_durable_step, control.committed_step) == (10, 30)
    control.note_committed(30, durable_step=15)
    assert (control.previous_durable_step, control.committed_step) == (10, 30)
    control.note_committed(40)
    assert (control.previous_durable_step, control.committed_step) == (15, 40)


def test_an_interrupt_of_an_older_generation_stops_nobody() -> None:
    training = Training()
    training.control.interrupt(0, "long ago")

    training.control.check(1)

    training.control.interrupt(1, "w1 lost")
    with pytest.raises(GenerationInterrupted, match="w1 lost"):
        training.control.check(1)


@pytest.mark.parametrize(("code", "woken"), [("FENCED", 1), ("", 0)])
def test_the_end_of_the_process_wakes_who_sits_in_a_collective_unless_all_went_well(
    code: str, woken: int
) -> None:
    training = Training()
    calls: list[str] = []
    training.control.on_interrupt(lambda: calls.append("woken"))
    training.control.finish(Verdict(code, "it is over"))
    assert len(calls) == woken


def test_a_main_thread_that_waits_looks_for_signals_now_and_then() -> None:
    training = Training()
    looked = threading.Semaphore(0)
    wait = training.control._changed.wait

    def noting(timeout: float | None = None) -> bool:
        looked.release()
        return wait(timeout)

    training.control._changed.wait = noting  # type: ignore[method-assign]  # to see each wait begin
    with training.main_thread(training.control.verdict):
        for _ in range(3):
            assert looked.acquire(timeout=WAIT_S)
            training.control.tick()
        training.control.finish(Verdict("", ""))
