"""Who asks for nodes to leave: a process that was asked to end, a person, and the launcher of a host that is to be taken away.

Standbys take their ranks behind a step that every rank has saved. A person is told beforehand where none is there. A host goes anyway: all
ranks save that step all the same, and its nodes leave behind it, so that whoever comes for their ranks loses no step.
"""

from __future__ import annotations

from recovery.core.barrier_messages import Depart, JobSaved, NotHandedOver, StopJob
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, NodeId
from recovery.core.policy import ranks
from recovery.core.records import EventKind
from recovery.core.scheduler import barrier_ends
from recovery.core.scheduler.barrier import tell
from recovery.core.scheduler.effects import BarrierTimer, KeepConnection, SchedulerEffect, Send, SetTimer
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import DrainAsked

STOP_FOLLOWS_MS = 300
"""How long a worker that is asked to end is not sent away for want of a standby: the launcher may have been asked by the same signal. Below
`ANSWER_MS` of core/worker/barrier.py."""

NO_RANK_STOPS = "no rank could stop for it: "
"""Where an event of a notice that is refused at once says why."""


def on_depart(state: SchedulerState, node: Node, depart: Depart, now_ms: int) -> list[SchedulerEffect]:
    """A process was asked to end (SIGTERM), and asks for its rank to be handed over first."""
    assert node.connection is not None, "it just spoke"
    node_id = node.record.node_id
    last = state.barrier
    # Whose launcher has asked already, and could not wait for a save, is not one of many that have all been asked just now.
    is_ending = last is not None and last.ends_job and last.generation == state.job.generation
    obstacle = barrier_ends.why_not(state, (node_id,), "", needs_standbys=is_ending)
    why = f"{node_id}: {depart.reason}"
    if obstacle:
        said = NotHandedOver(request_id=depart.request_id, reason=obstacle, job_ends=is_ending)
        noted = [] if is_ending else _note_refused(state, (node_id,), why, obstacle)
        return [*noted, Send(node.connection, said)]
    departs = {node_id: depart.request_id}
    barrier, begun = barrier_ends.begin_or_join(state, departs, "", why, now_ms)
    # Where it joins one that is under way, the step that it was asked for shows that its wish has come, too.
    effects = begun or [tell([node], barrier.question)]
    barrier.standbys_due_ms = min(now_ms + STOP_FOLLOWS_MS, barrier.until_ms)
    return [*effects, SetTimer(BarrierTimer(), barrier.standbys_due_ms)]


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
    why = f"the launcher at {peer}: {stop.reason}"
    if obstacle := barrier_ends.why_not(state, stop.nodes, "", needs_standbys=False):
        said = JobSaved(request_id=request, step=durable, obstacle=obstacle)
        noted = _note_refused(state, stop.nodes, why, obstacle)
        return [*noted, Persist((), (Answer(connection, said),))]
    departing = dict.fromkeys(stop.nodes, request)
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


def _note_refused(
    state: SchedulerState, nodes: tuple[NodeId, ...], why: str, obstacle: str
) -> list[SchedulerEffect]:
    """Tell of nodes that leave although nothing could be saved for it: once, where their launcher and they ask. A job that has ended has told why."""
    here = (state.nodes[node_id] for node_id in nodes if node_id in state.nodes)
    asked = {(node.record.node_id, node.record.incarnation) for node in here}
    if state.job_ended or not asked - state.refused_leaves:
        return []
    state.refused_leaves |= asked
    state.notices += 1
    names = ", ".join(sorted(nodes, key=ranks.natural_key))
    event = state.event(
        EventKind.DRAIN_ENDED,
        generation=state.job.generation or None,
        reason=f"{why}; {NO_RANK_STOPS}{obstacle}",
        details=names,
    )
    return [Persist((event,))]
