"""Which ranks are here and ready, until when that is waited for, and which are named when they did not come."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core import messages as m
from recovery.core.policy import ranks
from recovery.core.records import JobState, NodeState
from recovery.core.scheduler import job_end
from recovery.core.scheduler.effects import SchedulerEffect, SetTimer, TopologyTimer
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.membership import lost_scheduler_store
from recovery.core.scheduler.pauses import begins_again, was_paused
from recovery.core.scheduler.state import SchedulerState

DECLINES_NAMED = 8
"""Answers of standbys in the reason for an end; the event log has all."""


def all_ranks_ready(state: SchedulerState) -> bool:
    """Is every rank live and ready, and every server here while the job forms?"""
    workers, servers = state.slots[m.Role.WORKER], state.slots[m.Role.SERVER]
    if state.job.state is JobState.FORMING and servers.taken < state.rules.server_count:
        return False
    if state.builds_again:
        # Which of them have the ranks follows from what they know (lost_scheduler_store.py).
        return workers.ready + workers.ready_standbys >= state.rules.world_size
    return workers.ready == workers.taken >= state.rules.world_size


def wait_for_all_ranks(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Start the deadline within which every rank must be ready (MS_TOPO_TIMEOUT)."""
    state.waits_since_ms = now_ms
    return _begin_deadline(state, now_ms)


def _begin_deadline(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    if state.rules.topology_timeout_ms is None:
        return []
    state.deadline_ms = now_ms + state.rules.topology_timeout_ms
    return [SetTimer(TopologyTimer(), state.deadline_ms)]


def on_deadline(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """The deadline has passed: the job fails, and says which nodes were missing."""
    if state.deadline_ms is None or now_ms < state.deadline_ms or state.job.state not in WAITING:
        return []
    if all_ranks_ready(state) and state.crash_loop is not None and state.crash_loop.waits:
        # Nobody is missing: the generation begins when its pause is over.
        return []
    if was_paused(state.deadline_ms, now_ms):
        again = begins_again("MS_TOPO_TIMEOUT", state.deadline_ms, now_ms)
        return [again, *_begin_deadline(state, now_ms)]
    if filled := lost_scheduler_store.take_standbys(state):
        return [*filled, *_begin_deadline(state, now_ms)]
    return job_end.end(state, m.JobOutcome.WAIT_TIMEOUT, _who_is_missing(state), now_ms)


def _who_is_missing(state: SchedulerState) -> str:
    assert state.rules.topology_timeout_ms is not None, "there was a deadline"
    roles = [_attendance(state, m.Role.WORKER, state.rules.world_size)]
    # Servers are waited for only while the job forms.
    if state.job.state is JobState.FORMING and state.rules.server_count:
        roles.append(_attendance(state, m.Role.SERVER, state.rules.server_count))
    unready = [
        node.record.node_id
        for node in state.workers
        if node.record.state is NodeState.LIVE and node.ready is None
    ]
    reason = (
        f"{' and '.join(role.counted for role in roles)} are here after "
        f"{state.rules.topology_timeout_ms / 1000:g} s (MS_TOPO_TIMEOUT); "
        f"missing: {', '.join(name for role in roles for name in role.missing) or 'none'}; "
    )
    if unready:
        names = ", ".join(sorted(unready, key=ranks.natural_key))
        reason += f"here and not ready, still looking at its checkpoints: {names}; "
    reason += f"here: {', '.join(name for role in roles for name in role.here) or 'none'}"
    reason += who_declined(state)
    if state.job.reason:
        reason += f"{job_end.FIRST_FAILURE}{state.job.reason}"
    return reason


def who_declined(state: SchedulerState) -> str:
    """Which standbys were asked to take the rank of a node that is gone and did not, and what each lacks. Begins with a semicolon, or is empty."""
    holders = state.slots[m.Role.WORKER].holders
    declined = [
        f"{name} did not take the rank of {holders[slot]}: {decline.reason}"
        for name, of_slots in sorted(
            state.vacancies.declined.items(), key=lambda item: ranks.natural_key(item[0])
        )
        for slot, decline in of_slots.items()
        if state.nodes[holders[slot]].record.state in (NodeState.LOST, NodeState.LEFT)
    ]
    more = [f"and {len(declined) - DECLINES_NAMED} more declined"] if len(declined) > DECLINES_NAMED else []
    return "".join(f"; {text}" for text in (*declined[:DECLINES_NAMED], *more))


class _Attendance(NamedTuple):
    """Which nodes of a role are here and which are not, as people read it."""

    counted: str
    missing: list[str]
    here: list[str]


def _attendance(state: SchedulerState, role: m.Role, wanted: int) -> _Attendance:
    name = "worker" if role is m.Role.WORKER else "server"
    here: list[str] = []
    missing: list[str] = []
    for node in sorted(state.slot_holders(role), key=lambda holder: ranks.natural_key(holder.record.node_id)):
        (here if node.record.state is NodeState.LIVE else missing).append(node.record.node_id)
    unknown = wanted - len(here) - len(missing)
    if unknown:
        which = "" if role is m.Role.WORKER else f" {name}{'s' if unknown > 1 else ''}"
        missing.append(f"{unknown}{which} that never registered")
    return _Attendance(f"{len(here)} of {wanted} {name}s", missing, here)
