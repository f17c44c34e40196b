"""A node that has connected is brought to where the job stands."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.ids import Generation
from recovery.core.scheduler import planned_end
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations.plan_messages import rollback_for
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.membership import takeover
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def catch_up(state: SchedulerState, node: Node, register: m.Register, now_ms: int) -> list[SchedulerEffect]:
    """Bring a node that (re)connected to where the job stands. Behind the write that admits it, so in order."""
    connection, its_generation = node.connection, register.generation
    assert connection is not None, "it just registered"
    if state.job_ended or node.record.role is m.Role.SERVER or node.is_standby:
        return []
    effects: list[SchedulerEffect] = []
    if node.took_over and node.record.rank is not None and not its_generation:
        # A fresh process in the place of another name: its own directories may not hold the rank's files.
        effects += takeover.ask_holder(state, node, now_ms)
    if state.job.state in WAITING:
        over = Generation(max(state.job.generation, its_generation))
        interrupt = m.Interrupt(generation=over, reason=state.job.reason[:1024])
        return [*effects, *([Persist((), (Answer(connection, interrupt),))] if its_generation else [])]
    answers: list[Answer] = []
    if its_generation != state.job.generation:
        answers.append(Answer(connection, rollback_for(state, node)))
    node.sent_generation = state.job.generation
    if state.rendezvous is not None:
        answers.append(Answer(connection, state.rendezvous))
    end = planned_end.agreed(state)
    if end is not None:
        answers.append(Answer(connection, planned_end.training_ends(state, end)))
    return [*effects, Persist((), tuple(answers))]
