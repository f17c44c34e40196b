"""What people are shown of the live state: the same words for HTTP, files and the CLI."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from recovery.core.copy_index import with_copies
from recovery.core.ids import NodeId
from recovery.core.policy.ranks import natural_key
from recovery.core.records import JobState, NodeState
from recovery.core.scheduler.membership import death_proof
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState

STARTING_AGAIN = "starting again"
"""Of a node: its connection is closed and its process runs: a script that survived a failure starts its program again, by exec."""
AWAY = (NodeState.SUSPECT, NodeState.LOST)
"""States of a node that is not here, and may come back."""


def job_view(state: SchedulerState, now_ms: int) -> dict[str, Any]:
    """The state of the job and of each node, as plain values."""
    job = state.job
    began_at = state.generations[-1].step if state.generations else 0
    # A rank that came back has loaded, and met the others, when it makes a step.
    trains = job.state is JobState.RUNNING and all(node.record.step > began_at for node in state.workers)
    since_ms = None if trains or state.job_ended else state.waits_since_ms
    return {
        "job": job.job,
        "run": job.run,
        "state": job.state.value,
        "generation": job.generation,
        "reason": job.reason,
        "scheduler_incarnation": job.scheduler_incarnation,
        "world_size": job.worker_count,
        "committed_step": state.checkpoints.committed_step,
        **msgspec.structs.asdict(state.checkpoints.failed_work),
        "notices": state.notices,
        "began_at_step": began_at,
        "trains": trains,
        "waits_ms": None if since_ms is None else now_ms - since_ms,
        "step_age_ms": _step_age_ms(state.workers, now_ms),
        "hang": _hang(state),
        "stragglers": _stragglers(state),
        "leaving": _leaving(state, now_ms),
        "nodes": [
            {
                "node_id": node.record.node_id,
                "role": node.record.role.value,
                "rank": node.record.rank,
                "incarnation": node.record.incarnation,
                "pid": node.record.pid,
                "host": node.record.host,
                "state": node.record.state.value,
                "seat": node.slot,
                "generation": node.record.generation,
                "step": node.record.step,
                "silent_ms": now_ms - node.heard_ms,
                "rejoin_left_ms": max(0, node.window_ends_ms - now_ms)
                if node.record.state is NodeState.LOST
                else 0,
                "reason": node.record.reason,
                "cause": node.record.cause.value,
                "warming_up": node.is_warming_up,
                "starts_again": node.is_restarting,
                "is_ready": node.ready is not None,
                **_told(node),
            }
            for node in sorted(
                state.nodes.values(), key=lambda node: (node.record.rank is None, node.record.rank or 0)
            )
        ],
    }


def _told(node: Node) -> dict[str, Any]:
    """What a rank has told of its training for people. JSON has no number for a loss that is none, so that is its word.

    Epoch and loss are those of the step in the heartbeat: behind a rollback, or its last step, the rank is at another.
    """
    beat = node.newest_beat
    is_of_step = beat is not None and beat.step == node.record.step
    loss = beat.loss if beat is not None and is_of_step else None
    pace = beat.phase.pace if beat is not None and beat.phase is not None else None
    return {
        "epoch": (beat.epoch or None) if beat is not None and is_of_step else None,
        "total_steps": (beat.total_steps or None) if beat is not None else None,
        "loss": loss if loss is None or math.isfinite(loss) else str(loss),
        "data_ms": None if pace is None else pace.data_us / 1_000,
        "compute_ms": pace.compute_us / 1_000 if pace is not None and pace.compute_us else None,
    }


def _hang(state: SchedulerState) -> dict[str, Any] | None:
    """Who may hang, where, for how long, and since when that is too long; None: nobody is suspected."""
    known = state.hangs.suspicion
    if known is None or known.generation != state.job.generation or state.job.state is not JobState.RUNNING:
        return None
    suspect = known.suspect
    node = state.nodes[NodeId(suspect.node_id)]
    told = None if node.newest_beat is None else node.newest_beat.phase
    here = told if told is not None and told.phase is suspect.phase and not suspect.left_out else suspect
    return {
        "node_id": suspect.node_id,
        "rank": suspect.rank,
        "step": suspect.step,
        "phase": suspect.phase.value,
        "lasting_ms": here.lasting_ms,
        "limit_ms": suspect.limit_ms,
        "left_out": suspect.left_out,
        "stack": "" if told is None else told.stack,
    }


def _stragglers(state: SchedulerState) -> list[dict[str, Any]]:
    """The ranks that are told to be slow, slowest first, and by what."""
    return [
        {
            "node_id": one.node_id,
            "rank": one.rank,
            "part": one.part,
            "own_ms": one.own_us / 1_000,
            "usual_ms": one.usual_us / 1_000,
            "reason": one.sentence,
        }
        for one in state.stragglers.of(state.job.generation)
        if state.job.state is JobState.RUNNING
    ]


def _leaving(state: SchedulerState, now_ms: int) -> dict[str, Any] | None:
    """Whose processes are asked to leave, by whom, within what time, and at which step all save for that; None: nobody's."""
    barrier = state.barrier
    if barrier is None or not barrier.is_under_way or barrier.ends_training:
        return None
    return {
        "nodes": sorted(barrier.departing, key=natural_key),
        "whole_job": barrier.ends_job,
        "left_ms": max(0, barrier.until_ms - now_ms),
        "step": barrier.step,
        "reason": barrier.reason,
    }


def _step_age_ms(workers: Iterable[Node], now_ms: int) -> int | None:
    """How long ago the newest step was made; None: this scheduler has heard of none."""
    return min((now_ms - node.stepped_ms for node in workers if node.stepped_ms is not None), default=None)


def figures_view(state: SchedulerState, now_ms: int) -> dict[str, Any]:
    """The job in figures: of 1,000 nodes a tenth of the work of all their rows."""
    job, workers = state.job, state.workers
    states = Counter(
        STARTING_AGAIN if node.is_restarting and node.record.state in AWAY else node.record.state.value
        for node in workers
    )
    committed_step = state.checkpoints.committed_step
    return {
        "state": job.state.value,
        "step": max((committed_step, *(node.record.step for node in workers))),
        "committed_step": committed_step,
        "step_age_ms": _step_age_ms(workers, now_ms),
        "generation": job.generation,
        "scheduler_incarnation": job.scheduler_incarnation,
        "nodes": states,
        "standbys": sum(
            node.is_standby and node.record.state is NodeState.LIVE for node in state.nodes.values()
        ),
        "notices": state.notices,
    }


def lost_view(state: SchedulerState, now_ms: int) -> dict[str, Any]:
    """The nodes that were lost by silence, for the launchers that watch their processes: short, since each asks every second.

    Whose connection closed is not among them: its process may have replaced itself by exec, and imports for as long as that takes.
    `returns_ms` is how long a process that is well, and whose way here is free, takes at most to be heard. `silent` are those of whom
    it would change something to know that their processes have ended.
    """
    return {
        "returns_ms": state.rules.returns_ms,
        "nodes": [
            {"node_id": node.record.node_id, "pid": node.record.pid, "reason": node.record.reason}
            for node in state.nodes.values()
            if node.hangs and node.record.state is NodeState.LOST
        ],
        "silent": [
            {
                "node_id": node.record.node_id,
                "pid": node.record.pid,
                "process": msgspec.to_builtins(node.process),
            }
            for node in state.nodes.values()
            if node.process is not None and death_proof.may_still_matter(state, node, now_ms)
        ],
        "job": state.job.job,
    }


def drain_view(state: SchedulerState) -> dict[str, Any]:
    """The barrier that is under way, or the last one of this scheduler's process; `number` 0: there was none."""
    barrier = state.barrier
    if barrier is None:
        return {"number": 0, "state": "", "nodes": [], "step": 0, "handed_over": False, "reason": ""}
    return {
        "number": barrier.number,
        "state": barrier.state.value,
        "nodes": sorted(barrier.departing),
        "step": barrier.step,
        "handed_over": barrier.handed_over,
        "reason": barrier.outcome,
    }


def generations_view(state: SchedulerState) -> list[Any]:
    """The generations of this run, oldest first, as they are stored."""
    return [msgspec.to_builtins(record) for record in state.generations]


def checkpoints_view(state: SchedulerState) -> list[Any]:
    """What the checkpoint index holds, newest step first, and the nodes that hold copies of it."""
    return [
        msgspec.to_builtins(with_copies(record, state.checkpoints.copies.holders(record.rank, record.step)))
        for record in state.checkpoints.held_records()
    ]
