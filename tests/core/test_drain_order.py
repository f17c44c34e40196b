"""What is said of a drain comes in the order of what is written: behind the plan, and its end behind its steps."""

from __future__ import annotations

from recovery.core.effects import Answer, Persist
from recovery.core.handover_messages import Depart, GoOn, NotHandedOver, SaveAt
from recovery.core.ids import ResumeToken
from recovery.core.scheduler.effects import Send
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived
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
