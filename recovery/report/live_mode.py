"""What live rollback would do for a job if a process died now, as far as its event log says."""

from __future__ import annotations

from recovery.core.policy.live import LIVE_MODE, NOT_LIVE
from recovery.core.records import EventKind, JobState
from recovery.report.stored import Stored
from recovery.store.reader import read_newest_events

_STARTS = (EventKind.SCHEDULER_STARTED, EventKind.SCHEDULER_RESTARTED)


def is_asked_for(stored: Stored) -> bool:
    """Was the job's newest scheduler started with it?"""
    started = read_newest_events(stored.path, _STARTS, 1)
    return bool(started) and started[0].event.details == LIVE_MODE


def sentence(stored: Stored) -> str:
    """Say whether a death now would cost steps; empty: the job does not ask for live rollback, or nobody trains."""
    if not is_asked_for(stored) or stored.job.state is not JobState.RUNNING:
        return ""
    loaded = read_newest_events(stored.path, (EventKind.STATE_LOADED,), 2 * stored.job.worker_count)
    reasons = {
        f"rank {row.event.rank}: {row.event.details.removeprefix(NOT_LIVE)}"
        for row in loaded
        if row.event.generation == stored.job.generation and row.event.details.startswith(NOT_LIVE)
    }
    if reasons:
        return f"not possible, so a death costs the steps since the newest checkpoint: {'; '.join(sorted(reasons))}"
    return (
        "while a rank survives between two optimizer steps, a death costs no step: training goes on from that rank's memory; "
        "the checkpoint is for what no memory survives"
    )
