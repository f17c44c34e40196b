"""A worker's part in the early end of training: it asks for all ranks, waits where it is told to, and lets its loop end."""

from __future__ import annotations

from recovery.core.barrier_messages import GoOn, Position, SaveAt, StopTraining, TrainingEnds
from recovery.core.ids import Generation
from recovery.core.messages import Interrupt
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.driven_worker import DrivenWorker, plan

WHY = "the loss is low enough"
ONE = Generation(1)
ASKED = StopTraining(generation=ONE, step=7, reason=WHY)
END = TrainingEnds(generation=ONE, step=8, reason=f"worker_0: {WHY}")


def save_at(step: int, drain: int = 1) -> SaveAt:
    return SaveAt(drain=drain, generation=ONE, step=step, wait_ms=1_000, ends_training=True)


def asking() -> DrivenWorker:
    worker = DrivenWorker().training()
    worker.handle(s.TrainingStopAsked(ONE, 7, WHY))
    return worker


def test_what_the_script_asks_is_sent_and_sent_again_until_it_is_answered() -> None:
    worker = asking()
    assert worker.sent(StopTraining) == [ASKED]
    worker.reconnect()
    worker.admitted(resumed=True)
    assert worker.sent(StopTraining) == [ASKED]
    worker.receive(END)
    assert worker.effects == [we.EndTraining(ONE, 8, END.reason)]
    worker.reconnect()
    worker.admitted(resumed=True)
    assert worker.sent(StopTraining) == []


def test_what_is_asked_while_nobody_listens_is_sent_when_somebody_does() -> None:
    worker = DrivenWorker().training()
    worker.handle(s.Disconnected("cut", 0.5))
    assert worker.handle(s.TrainingStopAsked(ONE, 7, WHY)) == []
    worker.handle(s.Connected())
    worker.admitted(resumed=True)
    assert worker.sent(StopTraining) == [ASKED]


def test_what_an_earlier_generation_has_asked_is_not_said_in_the_next() -> None:
    worker = asking()
    worker.receive(Interrupt(generation=ONE, reason="cut"))
    worker.handle(s.TrainingStopped(ONE, 7))
    worker.found()
    worker.receive(plan(2))
    worker.reconnect()
    worker.admitted(resumed=True)
    assert worker.sent(StopTraining) == []


def test_a_rank_waits_where_training_is_to_end_until_it_hears_more() -> None:
    """No time lets it go, and no reconnect: it is asked again, for what it has said may be lost."""
    worker = DrivenWorker().training()
    stop = we.StopAt(1, ONE, 8, ends_training=True)
    assert worker.receive(save_at(8)) == [stop]
    worker.handle(s.Positioned(ONE, 6, stops=True, step=8))
    assert worker.sent(Position) == [Position(drain=1, step=8, passed=6, stops=True)]
    assert worker.receive(save_at(8)) == [], "it has answered"
    assert worker.fire(WorkerTimer.DEPART, 3_600_000) == []
    worker.reconnect()
    worker.admitted(resumed=True)
    assert worker.effects_of(we.ResumeTraining) == []
    worker.reconnect()
    worker.admitted(resumed=True)
    assert worker.effects_of(we.ResumeTraining) == []
    assert worker.receive(save_at(8)) == [stop]


def test_a_drain_that_was_given_up_for_it_lets_nobody_go_that_waits_for_its_end() -> None:
    worker = asking()
    worker.receive(SaveAt(drain=1, generation=ONE, step=9, wait_ms=1_000))
    worker.receive(save_at(7, drain=2))
    assert worker.receive(GoOn(drain=1)) == []


def test_the_end_of_another_generation_ends_nothing() -> None:
    worker = DrivenWorker().training()
    assert worker.receive(TrainingEnds(generation=Generation(2), step=8, reason="")) == []
    idle = DrivenWorker().admitted()
    assert idle.receive(TrainingEnds(generation=Generation(0), step=8, reason="")) == []
