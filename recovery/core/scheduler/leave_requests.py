"""Who asks for nodes to leave besides themselves: a person, and the launcher of a host that is to be taken away.

Standbys take their ranks behind a step that every rank has saved. A person is told beforehand where none is there. A host goes anyway: all
ranks save that step all the same, and its nodes leave behind it, so that whoever comes for their ranks loses no step.
"""

from __future__ import annotations

from recovery.core.barrier_messages import JobSaved, StopJob
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, NodeId
from recovery.core.scheduler import barrier_ends
from recovery.core.scheduler.barrier import tell
from recovery.core.scheduler.effects import BarrierTimer, KeepConnection, SchedulerEffect, SetTimer
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import DrainAsked


def on_drain_asked(state: SchedulerState, asked: DrainAsked, now_ms: int) -> list[SchedulerEffect]:
    """A person asks for ranks to be handed over. The caller has looked at `why_not`, and looks at what became of it."""
    if barrier_ends.why_not(state, asked.nodes, asked.host):
        return []
    departing = dict.fromkeys(asked.nodes)
    return barrier_ends.begin_or_join(state, departing, asked.host, asked.reason, now_ms)[1]


def named(state: SchedulerState, target: str) -> tuple[tuple[NodeId, ...], str]:
    """Whose ranks a person means by the name of a node or a host, and the host."""
    of_host = tuple(node.record.node_id for node in state.workers if node.record.host == target)
    node = state.nodes.get(NodeId(target))
    return (of_host, target) if node is None else ((node.record.node_id,), "")


def on_host_leaves(
    state: SchedulerState, connection: ConnectionId, stop: StopJob, peer: str, now_ms: int
) -> list[SchedulerEffect]:
    """A launcher says which of its nodes are to leave, and how long that may take. Said again, it only keeps its connection."""
    last, joined, request = state.barrier, barrier_ends.open_one(state), stop.request_id
    durable = state.checkpoints.durable_step
    if last is not None and request in last.leaving.values():
        if last.is_under_way:
            last.leaving[connection] = request
            return [KeepConnection(connection)]
        return [Persist((), (Answer(connection, last.host_left(request, durable)),))]
    if joined is not None and joined.ends_job:
        # The whole job ends there, and this host's part of it.
        joined.launchers[connection] = request
        return [KeepConnection(connection)]
    if obstacle := barrier_ends.why_not(state, stop.nodes, "", needs_standbys=False):
        said = JobSaved(request_id=request, step=durable, obstacle=obstacle)
        return [Persist((), (Answer(connection, said),))]
    why, departing = f"the launcher at {peer}: {stop.reason}", dict.fromkeys(stop.nodes, request)
    barrier, begun = barrier_ends.begin_or_join(state, departing, "", why, now_ms, stop.within_ms)
    barrier.leaving[connection] = request
    if begun:
        return [KeepConnection(connection), *begun]
    if stop.within_ms > barrier.wait_ms:
        # Ranks that wait at the step wait so much longer, too; they would not for the same time again.
        barrier.wait_ms, barrier.until_ms = stop.within_ms, now_ms + stop.within_ms
    # What they have answered stays.
    again = tell(state.workers, barrier.question)
    return [KeepConnection(connection), again, SetTimer(BarrierTimer(), barrier.until_ms)]
