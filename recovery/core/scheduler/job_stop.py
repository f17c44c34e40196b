"""A launcher is asked to end the job: all ranks save a step and wait there until their processes are ended, and the next start goes on there.

It is a planned departure that nobody departs in (drain.py). Another launcher's request, or the SIGTERM of a worker, joins it.
"""

from __future__ import annotations

from recovery.core.effects import Answer, Persist
from recovery.core.handover_messages import JobSaved, StopJob
from recovery.core.ids import ConnectionId, NodeId, RequestId
from recovery.core.records import JobState
from recovery.core.scheduler import drain as drains
from recovery.core.scheduler.drain_states import Drain, DrainFact, DrainState
from recovery.core.scheduler.effects import KeepConnection, SchedulerEffect
from recovery.core.scheduler.state import SchedulerState

_ALL_IS_TO_END = "the whole job is to end"


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
    """Training ends at a step, and launchers wait for the end of the job: all ranks come to that step, and save it last."""
    drain = drains.new_drain(state, ended.reason, ended.wait_ms, now_ms)
    drain.ends_job, drain.stops, drain.step = True, ended.stops, ended.step
    drain.connections = {node.record.node_id: node.connection for node in state.workers}
    drain.move(DrainFact.POSITIONS_KNOWN)
    drain.move(DrainFact.ALL_STOP)
    return drains.begun(state, drain)


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
