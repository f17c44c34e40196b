"""Ranks that come on, and make all others wait for them in each step, as their heartbeats show it. It is told; nothing is replaced for it."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Persist
from recovery.core.ids import NodeId
from recovery.core.policy import stragglers
from recovery.core.policy.stragglers import RankPace
from recovery.core.records import EventKind, JobState
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def note_heartbeat(
    state: SchedulerState, node: Node, beat: m.Heartbeat, now_ms: int
) -> list[SchedulerEffect]:
    """A heartbeat, the node's newest, may say how long its own work on a batch takes: look whether a rank is slower than the others are."""
    percent = state.rules.straggler_percent
    is_training = state.job.state is JobState.RUNNING and beat.generation == state.job.generation
    if not percent or not is_training or node.done or node.is_standby or beat.phase is None:
        return []
    watch = state.stragglers
    if beat.phase.pace is None or not watch.may_look(state.job.generation, now_ms):
        return []
    verdicts = watch.note(stragglers.slow(_paces(state), percent), now_ms)
    events = [
        state.node_event(
            EventKind.STRAGGLER_FOUND, state.nodes[NodeId(one.node_id)], step=beat.step, reason=one.sentence
        )
        for one in verdicts.found
    ]
    events += [
        state.node_event(
            EventKind.STRAGGLER_CLEARED,
            state.nodes[NodeId(one.node_id)],
            step=beat.step,
            reason=f"rank {one.rank} ({one.node_id}) is no slower than the others now; its own work on a batch took {one.own_us / 1000:.1f} ms",
        )
        for one in verdicts.cleared
    ]
    return [Persist(tuple(events))] if events else []


def _paces(state: SchedulerState) -> list[RankPace]:
    """Of the ranks that train; empty: one of them has not told enough yet, and may be the one in the middle."""
    paces: list[RankPace] = []
    for node in state.workers:
        if node.done:
            continue
        beat = node.newest_beat
        if beat is None or beat.phase is None or beat.phase.pace is None or node.record.rank is None:
            return []
        told = RankPace(node.record.rank, node.record.node_id, beat.phase.pace)
        if beat.generation != state.job.generation or not told.has_enough:
            return []
        paces.append(told)
    return paces
