"""The end of training or of the job at a step that all ranks come to: a launcher or a script asks for it.

Both are planned departures that nobody departs in (drain.py).

A launcher is asked to end the job: all ranks save a step and wait there until their processes are ended, and the next start goes on there. Another
launcher's request, or the SIGTERM of a worker, joins it.

A script ends training (`session.stop()`): its ranks come to one step, and their loops end there. The first step is that of the rank that asks, which
waits there: where all ask at the same step, that is it. It waits for a rank that is away, since it ends with its generation at the latest: then the
next plan says where training ends.
"""

from __future__ import annotations

import msgspec

from recovery.core.effects import Answer, Persist
from recovery.core.handover_messages import JobSaved, StopJob, StopTraining, TrainingEnds
from recovery.core.ids import ConnectionId, NodeId, RequestId
from recovery.core.records import JOB_STOPPED, EventKind, JobState, TrainingEndRecord
from recovery.core.scheduler import drain as drains
from recovery.core.scheduler.drain_states import Drain, DrainFact, DrainState
from recovery.core.scheduler.effects import DrainTimer, KeepConnection, SchedulerEffect, SetTimer
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState

_ALL_IS_TO_END = "the whole job is to end"
_ENDS_WITHIN_MS = 5_000
"""How long processes take to end behind the save, at most: what a launcher leaves them of MS_STOP_GRACE."""
_ASK_AGAIN_MS = 1_000
"""How often a rank is asked again that has not said whether it stops where training ends: it was still fetching what the plan goes back to."""

# --- of the job ---------------------------------------------------------------------------------------------------------


def on_stop_job(
    state: SchedulerState, connection: ConnectionId, stop: StopJob, peer: str, now_ms: int
) -> list[SchedulerEffect]:
    """A launcher was asked to end the job. All of them are, one soon after the other, and the first request is that of all."""
    drain, request = state.drain, stop.request_id
    if drain is not None and drain.state is DrainState.HANDING_OVER:
        obstacle = f"a rank is being handed over at step {drain.step}"
        said = JobSaved(request_id=request, step=state.checkpoints.durable_step, obstacle=obstacle)
        return [Persist((), (Answer(connection, said),))]
    if drain is not None and drain.is_open and (drain.ends_job or drain.ends_training):
        # Said again, it only keeps its connection.
        drain.ends_job, drain.stops[connection] = True, request
        if drain.ends_training:
            # Behind its end the launcher's time counts.
            drain.wait_ms = stop.within_ms
        return [KeepConnection(connection)]
    if drain is not None and (request in drain.stops.values() or _still_waits(state, drain, now_ms)):
        return [Persist((), (Answer(connection, drains.job_saved(state, drain, request)),))]
    obstacle = _why_not_saved(state)
    effects: list[SchedulerEffect] = []
    departing: dict[NodeId, RequestId | None] = {}
    if drain is not None and drain.is_open and obstacle:
        effects = drains.give_up(state, drain, _ALL_IS_TO_END)
    elif drain is not None and drain.is_open:
        # Its workers were asked by the same signal, or a person wants less: all stop once more, and have the launcher's time.
        effects = drains.end(state, drain, DrainFact.GIVEN_UP, _ALL_IS_TO_END)
        departing = drain.departing
    drain = drains.new_drain(state, f"the launcher at {peer}: {stop.reason}", stop.within_ms, now_ms)
    drain.ends_job, drain.stops[connection], drain.departing = True, request, departing
    if obstacle:
        return [*effects, *drains.end(state, drain, DrainFact.GIVEN_UP, obstacle)]
    return [KeepConnection(connection), *effects, *drains.begin(state, drain)]


def follow_training(state: SchedulerState, ended: Drain, now_ms: int) -> list[SchedulerEffect]:
    """Training ends at a step, and launchers wait for the end of the job: all ranks come to that step, and save it last.

    They are asked all the same: where the loop of one ends before that step, all do, and it is never saved.
    """
    drain = drains.new_drain(state, ended.reason, ended.wait_ms, now_ms)
    drain.ends_job, drain.stops, drain.last_step = True, ended.stops, ended.last_step
    drain.move(DrainFact.POSITIONS_KNOWN)
    drain.move(DrainFact.ALL_STOP)
    return [*drains.begun(state, drain), *drains.ask(state, drain, ended.last_step or ended.step)]


def _still_waits(state: SchedulerState, drain: Drain, now_ms: int) -> bool:
    """Is what was saved for the end of the job still where all ranks are?"""
    trains_on = state.job.state is JobState.RUNNING and now_ms >= drain.until_ms
    return drains.is_saved_for_its_end(state) and not trains_on


def _why_not_saved(state: SchedulerState) -> str:
    """Why the end of the job is not worth a save, or cannot be put off for one; empty: it can."""
    obstacle = drains.why_not(state, (), "", ends_job=True)
    if obstacle:
        return obstacle
    plan, reached = state.generations[-1].step, max(node.record.step for node in state.workers)
    # A loop that counts no step never comes to one, and one that has not begun has nothing to lose.
    is_stored = plan <= state.checkpoints.durable_step
    return f"no step is done since step {plan}" if is_stored and reached <= plan else ""


def why_job_stops(state: SchedulerState, now_ms: int) -> str:
    """Why processes end now, where a launcher has asked for the end of the job and has not had its time; empty: none has."""
    drain = state.drain
    if drain is None or not (drain.ends_job and drain.all_here) or drain.generation != state.job.generation:
        return ""
    return f"{JOB_STOPPED} ({drain.reason})" if now_ms < drain.until_ms + _ENDS_WITHIN_MS else ""


# --- of training --------------------------------------------------------------------------------------------------------


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
    assert drain is not None, "it ends training"
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
    said = training_ends(state, end)
    answers = [Answer(node.connection, said) for node in state.workers if node.connection is not None]
    drain.end(DrainFact.TRAINING_ENDS, f"training ends at step {end.step} ({end.reason})")
    follows = follow_training(state, drain, now_ms) if drain.stops else []
    return [Persist((end, *told), tuple(answers)), *follows]


def on_due(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A planned departure has had its time; where training is to end somebody was not in the generation yet, and has not listened."""
    drain = state.drain
    if drain is None or not (drain.is_open and drain.ends_training):
        return drains.on_due(state)
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


def agreed_training_end(state: SchedulerState) -> TrainingEndRecord | None:
    """Where training of the current generation ends; None: behind its last epoch, or its ranks are still being asked for a step."""
    drain = state.drain
    is_asked = drain is not None and drain.is_open and drain.ends_training
    return None if is_asked else state.training_end


def training_ends(state: SchedulerState, end: TrainingEndRecord) -> TrainingEnds:
    """What a rank hears of it."""
    return TrainingEnds(generation=state.job.generation, step=end.step, reason=end.reason)


def end_training_no_earlier(state: SchedulerState, step: int) -> tuple[TrainingEndRecord, ...]:
    """The next plan goes to this step, and training ends there at the earliest. Gives the row, if that changes it."""
    end = state.training_end
    if end is None or end.step >= step:
        return ()
    state.training_end = msgspec.structs.replace(end, step=step)
    return (state.training_end,)


def why_training_will_end(state: SchedulerState) -> str:
    """Where training ends, and why, for people; empty: behind its last epoch."""
    end = state.training_end
    return f"training ends at step {end.step} ({end.reason})" if end is not None else ""


def why_training_has_ended(state: SchedulerState, step: int) -> str:
    """Why training has ended at this step, for people; empty: that was its last."""
    end = state.training_end
    return f": its script ended it there ({end.reason})" if end is not None and end.step == step else ""
