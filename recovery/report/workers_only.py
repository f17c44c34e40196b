"""A recovery path of which this host has the workers' part alone: its scheduler, and with it the scheduler's store, is on another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recovery.core.records import JobRecord, JobState
from recovery.report import audit
from recovery.report.audit import Finding
from recovery.report.stored import Stored, workers_part
from recovery.store.paths import scheduler_path


def read_workers_only(path: Path) -> tuple[Stored, str] | None:
    """Look whether a path holds workers' stores alone.

    Returns:
        What is known of the job without its scheduler, and where that is; None: the path holds more, or nothing.

    Raises:
        StoreLostError, RecoveryPathError, StoreError: as `workers_part`.
    """
    try:
        has_store = scheduler_path(path).exists()
    except OSError:
        # It cannot be looked at, as little as what is said of it here.
        has_store = True
    if has_store:
        # The code that checks that store says what is wrong with it.
        return None
    part = workers_part(path)
    if part is None:
        return None
    lost, address = part
    newest = max(lost.pasts.values(), key=lambda past: (past.run, past.generation))
    job = JobRecord(
        job=newest.job,
        worker_count=newest.worker_count,
        server_count=newest.server_count,
        run=newest.run,
        state=JobState.RUNNING,
        generation=newest.generation,
        scheduler_incarnation=newest.scheduler_incarnation,
    )
    stored = Stored(
        path=path,
        job=job,
        runs=(),
        nodes=(),
        slots={},
        generations=(),
        checkpoints=(),
        scheduler_pid=None,
    )
    return stored, str(address)


def findings(stored: Stored) -> Iterator[Finding]:
    """Check the workers' stores whole, and what their own manifests describe. What the scheduler knows is not asked."""
    yield from audit.workers_databases(stored.path)
    yield from audit.checkpoints(stored)
