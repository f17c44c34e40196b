"""The store of a job whose workers' stores are lost as well: its checkpoints' manifests say which job it was, and who has saved where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from recovery import clock
from recovery.checkpoint import jobs
from recovery.core.ids import NodeId, RunId
from recovery.core.messages import JobHistory
from recovery.core.records import DirectoryRecord, Record
from recovery.errors import RecoveryPathError, UsageError
from recovery.scheduler import store_rebuild
from recovery.scheduler.store_rebuild import Traces
from recovery.store.archive import archive_stores, scheduler_files
from recovery.store.paths import scheduler_path
from recovery.store.reader import read_scheduler, stored_workers
from recovery.store.repository import WorkerStore

_FLAG = "--checkpoints"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has left."""

    traces: Traces
    """As its workers' stores would show it, where there were any."""
    directories: dict[NodeId, tuple[DirectoryRecord, ...]]
    """Where the ranks have saved whose own stores are gone, by the id that a launcher gives the worker of that rank."""


def look(path: Path, below: Sequence[Path], *, job: str = "") -> Found:
    """Find what is left of a job. Nothing is changed.

    Args:
        path: the recovery path. What a worker's own store says there of the job goes before its manifests.
        below: directories; the checkpoints of all ranks lie there, or below.
        job: which job; empty: the only one that has left any.

    Raises:
        RecoveryPathError: the scheduler's store is there, and knows checkpoints.
        UsageError: no checkpoints are there, or they are of several jobs.
        StoreError: what lies in the recovery path cannot be used as it is.
        OSError: a directory cannot be listed.
    """
    _check_is_lost(path)
    places: dict[str, dict[int, set[tuple[str, str, int]]]] = {}
    newest: dict[str, int] = {}
    for directory in below:
        for place, manifest in jobs.manifests_below(directory.absolute()):
            prefix = jobs.prefix_of(manifest)
            if prefix is not None:
                of_job = places.setdefault(manifest.job, {})
                of_job.setdefault(manifest.rank, set()).add((str(place), prefix, manifest.run))
                newest[manifest.job] = max(newest.get(manifest.job, 0), manifest.step)
    job = job or _only(newest, below)
    if job not in places:
        raise UsageError(
            field=f"--job {job}", reason="has left no checkpoints there", next_step=_name_one(newest)
        )
    stored = store_rebuild.lost_in(path)
    pasts = {name: past for name, past in (stored.pasts if stored else {}).items() if past.job == job}
    known = {past.rank for past in pasts.values()}
    directories = {
        NodeId(str(rank)): tuple(
            DirectoryRecord(path=place, prefix=prefix, run=RunId(run)) for place, prefix, run in sorted(where)
        )
        for rank, where in sorted(places[job].items())
        if rank not in known
    }
    for name, records in directories.items():
        past = store_rebuild.past_of_files(records, job=job, rank=int(name))
        assert past is not None, "a manifest of the job stands in each of these directories"
        pasts[name] = past
    _check_all_there(pasts, below)
    traces = Traces(
        path=path,
        remains=(),
        pasts=pasts,
        nodes={name: node for name, node in (stored.nodes if stored else {}).items() if name in pasts},
        unreadable=stored.unreadable if stored else (),
    )
    return Found(traces=traces, directories=directories)


def _check_is_lost(path: Path) -> None:
    """Refuse where a store would be archived that a job can go on with."""
    if not path.is_dir() or scheduler_path(path).name not in scheduler_files(path):
        return
    stored = read_scheduler(path)
    if stored.job is not None and stored.checkpoints:
        newest = max(checkpoint.step for checkpoint in stored.checkpoints)
        raise RecoveryPathError(
            path=str(path),
            reason=f"holds the store of job {stored.job.job}, which knows checkpoints up to step {newest}: it is not lost",
            next_step=f"Start that job again, or archive it first (recovery reset {path}).",
        )


def _only(newest: dict[str, int], below: Sequence[Path]) -> str:
    if len(newest) == 1:
        return next(iter(newest))
    where = " ".join(f"{_FLAG} {directory}" for directory in below)
    if not newest:
        raise UsageError(
            field=where,
            reason="holds no manifest of a checkpoint",
            next_step="Name where the ranks have saved.",
        )
    raise UsageError(
        field=where, reason=f"holds checkpoints of {len(newest)} jobs", next_step=_name_one(newest)
    )


def _name_one(newest: dict[str, int]) -> str:
    known = "; ".join(f"--job {job} (up to step {step})" for job, step in sorted(newest.items()))
    return f"Name one of them: {known}."


def _check_all_there(pasts: dict[NodeId, JobHistory], below: Sequence[Path]) -> None:
    """A rank that nothing is known of would keep the job from every common step."""
    newest = max(pasts.values(), key=lambda past: (past.run, past.generation))
    there = {past.rank for past in pasts.values() if past.run == newest.run}
    missing = [rank for rank in range(newest.worker_count) if rank not in there]
    if missing:
        raise UsageError(
            field=" ".join(f"{_FLAG} {directory}" for directory in below),
            reason=f"holds no checkpoint of rank {', '.join(map(str, missing))} of run {newest.run}",
            next_step=f"Name the directories of all {newest.worker_count} ranks, or one above them.",
        )


def write(found: Found, records: tuple[Record, ...]) -> Path | None:
    """Make the scheduler's store of these rows, and for each worker whose store is gone one that says where its rank has saved.

    What is in the way is archived, and nothing else is touched.

    Returns:
        Where that lies now; None: there was nothing.

    Raises:
        StoreLockedError: a process has a store of this path open.
        StoreError, RecoveryPathError: as `SchedulerStore.open`.
    """
    path, archived = found.traces.path, None
    pinned = found.traces.pasts.keys() - found.directories.keys()
    in_the_way = path.is_dir() and (scheduler_files(path) or set(stored_workers(path)) - pinned)
    if in_the_way:
        archived = archive_stores(path, f"lost-{clock.wall_ms()}", pinned=pinned)
    for node_id, directories in found.directories.items():
        store = WorkerStore.open(path, node_id)
        try:
            store.apply(directories, wall_ms=clock.wall_ms())
        finally:
            store.close()
    store_rebuild.write(path, records)
    return archived
