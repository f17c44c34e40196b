"""A script ends training (`session.stop()`): its ranks come to one step, and their loops end there.

It is a planned departure that nobody departs in (drain.py). Its first step is that of the rank that asks, which waits there: where all ask at the
same step, that is it. It waits for a rank that is away, since it ends with its generation at the latest: then the next plan says where training
ends (training_end.py).
"""

from __future__ import annotations

import msgspec

from recovery.core.effects import Answer, Persist
from recovery.core.handover_messages import StopTraining
from recovery.core.records import EventKind, JobState, TrainingEndRecord
from recovery.core.scheduler import drain as drains
from recovery.core.scheduler import job_stop, training_end
from recovery.core.scheduler.drain_states import Drain, DrainFact, DrainState
from recovery.core.scheduler.effects import DrainTimer, SchedulerEffect, SetTimer
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState

_ASK_AGAIN_MS = 1_000
"""How often a rank is asked again that has not said whether it stops where training ends: it was still fetching what the plan goes back to."""


def on_stop_training(
    state: SchedulerState, node: Node, stop: StopTraining, now_ms: int
) -> list[SchedulerEffect]:
    """A script ends training. It is noted before anything else: what is saved at that step must not lead behind it."""
    is_here = state.job.state in (JobState.RUNNING, JobState.INTERRUPTED)
    is_of_it = node.record.rank is not None and stop.generation == state.job.generation
    if not (is_here and is_of_it) or state.training_end is not None:
        # Said before; or its generation is over, and what follows comes to that step again.
        return []
    why = f"{node.record.node_id}: {stop.reason or 'session.stop()'}"[:1024]
    end = state.training_end = TrainingEndRecord(run=state.job.run, step=stop.step, reason=why)
    effects: list[SchedulerEffect] = [Persist((end,))]
    if state.job.state is not JobState.RUNNING:
        # The next plan says it.
        return effects
    before = state.drain
    if before is not None and before.is_open:
        effects += drains.give_up(state, before, f"training ends ({why})")
    drain = drains.new_drain(state, why, _ASK_AGAIN_MS, now_ms)
    drain.ends_training = True
    drain.move(DrainFact.POSITIONS_KNOWN)
    return [*effects, SetTimer(DrainTimer(), drain.until_ms), *drains.ask(state, drain, stop.step)]


def advance(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Who was away is asked again; nobody is given up while the generation goes on."""
    drain = state.drain
    if drain is None or not (drain.is_open and drain.ends_training):
        return []
    if drain.state is DrainState.SAVING:
        return _end_training(state, drain, now_ms)
    return _ask_again(state, drain)


def _end_training(state: SchedulerState, drain: Drain, now_ms: int) -> list[SchedulerEffect]:
    """All ranks stop at the step, and none of them leaves it but by the end of its loop."""
    assert state.training_end is not None, "it was asked for"
    end = state.training_end = msgspec.structs.replace(state.training_end, step=drain.step)
    event = state.event(
        EventKind.TRAINING_STOPPED, generation=drain.generation, step=end.step, reason=end.reason
    )
    # Where a rank had come to the end of its loop before, all do, and stop at no step: nobody says that they have.
    told = () if drain.last_step else (event,)
    said = training_end.message(state, end)
    answers = [Answer(node.connection, said) for node in state.workers if node.connection is not None]
    drain.end(DrainFact.TRAINING_ENDS, f"training ends at step {end.step} ({end.reason})")
    follows = job_stop.follow_training(state, drain, now_ms) if drain.stops else []
    return [Persist((end, *told), tuple(answers)), *follows]


def on_due(state: SchedulerState, drain: Drain, now_ms: int) -> list[SchedulerEffect]:
    """Somebody has not answered: it was not in the generation yet, and has not listened."""
    drain.until_ms = now_ms + _ASK_AGAIN_MS
    for node_id in drain.connections.keys() - drain.passed.keys():
        drain.connections[node_id] = None
    return [SetTimer(DrainTimer(), drain.until_ms), *_ask_again(state, drain)]


def _ask_again(state: SchedulerState, drain: Drain) -> list[SchedulerEffect]:
    """Ask those that have come back since they were asked: what they have said, or heard, may be lost."""
    question, asked = drains.question_of(drain), []
    for node in state.workers:
        node_id, connection = node.record.node_id, node.connection
        if connection is not None and drain.connections.get(node_id) != connection:
            drain.passed.pop(node_id, None)
            drain.connections[node_id] = connection
            asked.append(Answer(connection, question))
    return [Persist((), tuple(asked))] if asked else []
