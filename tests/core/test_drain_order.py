"""What is said of a drain comes in the order of what is written: behind the plan, and its end behind its steps."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.barrier_messages import Depart, GoOn, HandedOver, NotHandedOver, SaveAt
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ResumeToken
from recovery.core.scheduler.effects import Send
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived
from tests.core.desk import Worker
from tests.core.drained import Drained


def test_step_that_is_asked_for_overtakes_no_plan_and_is_not_overtaken_by_its_end() -> None:
    drained = Drained()
    machine, now = drained.desk.machine, drained.desk.now
    depart = Depart(request_id=drained.one.request(), reason="SIGTERM")
    begun = machine.handle(MessageReceived(drained.one.connection, depart, "", ResumeToken("")), now)
    given_up = machine.handle(ConnectionLost(drained.zero.connection, "closed"), now)
    for effects, kinds in ((begun, SaveAt), (given_up, (GoOn, NotHandedOver))):
        behind = [
            step.message
            for one in effects
            if isinstance(one, Persist)
            for step in one.then
            if isinstance(step, Answer)
        ]
        assert any(isinstance(one, kinds) for one in behind)
        assert not any(isinstance(one, Send) and isinstance(one.message, kinds) for one in effects)


def _handed_over() -> Drained:
    """A rank has been handed over; what its process hears of that waits behind the write."""
    drained = Drained()
    drained.handing_over()
    assert drained.one.hears(HandedOver) == 1
    return drained


def test_process_that_was_cut_off_before_it_heard_that_its_rank_is_handed_over_is_told_again() -> None:
    for restarted in (False, True):
        drained = _handed_over()
        drained.one.die()
        if restarted:
            drained.desk.restart()
        connection = drained.desk.connect()
        [told] = drained.desk.say(connection, drained.one.made())
        assert isinstance(told, HandedOver), "it is no leftover: it ends as if it had heard it at once"
        assert told.reason == drained.node("worker_1").reason


def test_process_whose_rank_was_handed_over_is_not_cut_off_by_the_next_one_of_its_id() -> None:
    drained = _handed_over()
    before = drained.one.connection
    fresh = Worker(drained.desk, "worker_1")
    assert isinstance(fresh.register(), m.Admitted)
    assert before not in drained.desk.closed, "what it is to hear may still wait behind the write"
    drained.desk.say(before, m.Heartbeat(sequence=1, generation=drained.one.generation, step=16))
    assert before in drained.desk.closed, "but it speaks for nobody"
