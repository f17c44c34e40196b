"""One screen: where the job stands, who is missing and when it may return, what a rollback would go back to."""

from __future__ import annotations

from collections import Counter
from typing import Any

from recovery.core.records import CheckpointState, JobState
from recovery.report.stored import Stored, newest_events
from recovery.report.tables import EVENTS, NODES

LAST_EVENTS = 8
"""A screen holds them beside the rest."""


def status(stored: Stored) -> dict[str, Any]:
    """As plain values with stable keys."""
    job, generation = stored.job, stored.current
    committed = committed_step(stored)
    return {
        "path": str(stored.path),
        "job": job.job,
        "run": job.run,
        "state": job.state.value,
        "reason": job.reason,
        "scheduler": {
            "pid": stored.scheduler_pid,
            "alive": stored.scheduler_pid is not None,
            "incarnation": job.scheduler_incarnation,
        },
        "generation": job.generation,
        "generation_began_at_step": generation.step if generation is not None else None,
        "world_size": job.worker_count,
        "workers_by_state": dict(Counter(node.state.value for node in stored.workers)),
        "newest_step": stored.newest_step,
        "committed_step": committed,
        "steps_since_checkpoint": max(0, stored.newest_step - committed),
        "lost": NODES.rows(stored.lost),
        "last_events": EVENTS.rows(newest_events(stored.path, LAST_EVENTS)),
    }


def committed_step(stored: Stored) -> int:
    """Newest step of this run that every rank holds, by the scheduler's books; what a generation began at counts too."""
    held = Counter(
        one.step
        for one in stored.checkpoints
        if one.run == stored.job.run and one.state is CheckpointState.COMMITTED
    )
    return max((step for step, count in held.items() if count >= stored.job.worker_count), default=0)


def ended(stored: Stored) -> bool:
    """Is the job over?"""
    return stored.job.state in (JobState.FINISHED, JobState.FAILED)
