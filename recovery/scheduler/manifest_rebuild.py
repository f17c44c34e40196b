"""Where the workers' stores of a job are lost as well: its checkpoints' manifests say which job it was, and who has saved where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery import clock
from recovery.checkpoint import catalogue, jobs
from recovery.checkpoint.contribution import Manifest
from recovery.core.ids import Incarnation, NodeId, Rank, RunId
from recovery.core.messages import Role
from recovery.core.records import (
    CheckpointState,
    DirectoryRecord,
    JobState,
    NodeRecord,
    NodeState,
    Record,
    to_record,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import new_job
from recovery.errors import RecoveryPathError, UsageError
from recovery.scheduler import store_rebuild
from recovery.store.archive import archive_stores, scheduler_files
from recovery.store.paths import scheduler_path
from recovery.store.reader import read_scheduler, stored_workers
from recovery.store.repository import WorkerStore


class _Saved(NamedTuple):
    """A checkpoint of one rank."""

    directory: str
    prefix: str
    manifest: Manifest


class Found(NamedTuple):
    """What a job has left."""

    path: Path
    """The recovery path."""
    known: frozenset[NodeId]
    """Workers whose own stores know the job. What they say goes before the manifests of their ranks."""
    rows: Mapping[NodeId, tuple[Record, ...]]
    """What the others' stores would hold, by the id that a launcher gives the worker of the rank."""


def look(path: Path, below: Sequence[Path], *, job: str = "") -> Found:
    """Find what is left of a job. Nothing is changed.

    Args:
        path: the recovery path.
        below: directories; the checkpoints of all ranks lie there, or below.
        job: which job; empty: the only one that has left any.

    Raises:
        RecoveryPathError: the scheduler's store is there, and knows checkpoints.
        UsageError: no checkpoints are there, or they are of several jobs, or of a rank there are none.
        StoreError: what lies in the recovery path cannot be used as it is.
        OSError: a directory cannot be listed.
    """
    _check_is_lost(path)
    found: dict[str, dict[Rank, list[_Saved]]] = {}
    for directory in below:
        for place, manifest in jobs.manifests_below(directory.absolute()):
            prefix = jobs.prefix_of(manifest)
            if prefix is not None:
                of_rank = found.setdefault(manifest.job, {}).setdefault(Rank(manifest.rank), [])
                of_rank.append(_Saved(str(place), prefix, manifest))
    where = " ".join(f"--checkpoints {directory}" for directory in below)
    job = _chosen(job, found, where)
    stored = store_rebuild.lost_in(path)
    known = {name: past for name, past in (stored.pasts if stored else {}).items() if past.job == job}
    worlds = {past.rank: (past.run, past.worker_count) for past in known.values()}
    rows: dict[NodeId, tuple[Record, ...]] = {}
    for rank, saved in sorted(found[job].items()):
        if rank not in worlds:
            newest = max(
                saved, key=lambda one: (one.manifest.run, one.manifest.generation, one.manifest.step)
            )
            worlds[rank] = (RunId(newest.manifest.run), newest.manifest.world_size)
            rows[NodeId(str(rank))] = _rows(newest, saved)
    _check_all_there(worlds, where)
    return Found(path, frozenset(known), rows)


def _rows(newest: _Saved, saved: Sequence[_Saved]) -> tuple[Record, ...]:
    """What the worker of a rank would have noted: the job, its own row, its newest save, and where to look for all."""
    directory, _, manifest = newest
    rank, held = Rank(manifest.rank), catalogue.held_of(manifest, Path(directory) / manifest.file)
    job = msgspec.structs.replace(
        new_job(manifest.job, Rules(worker_count=manifest.world_size)),
        run=held.run,
        state=JobState.RUNNING,
        generation=held.generation,
    )
    node = NodeRecord(
        node_id=NodeId(str(rank)),
        role=Role.WORKER,
        rank=rank,
        incarnation=Incarnation(manifest.incarnation),
        state=NodeState.LIVE,
        token_digest="",
        admission_request="",
        host="",
        pid=0,
    )
    places = sorted({(one.directory, one.prefix, one.manifest.run) for one in saved})
    directories = (DirectoryRecord(path=path, prefix=prefix, run=RunId(run)) for path, prefix, run in places)
    return job, node, to_record(rank, held, CheckpointState.PUBLISHED), *directories


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


def _chosen(job: str, found: Mapping[str, Mapping[Rank, Sequence[_Saved]]], where: str) -> str:
    """The job that is meant: the one that is named, else the only one."""
    if job in found or (not job and len(found) == 1):
        return job or next(iter(found))
    if not found:
        raise UsageError(
            field=where,
            reason="holds no manifest of a checkpoint",
            next_step="Name where the ranks have saved.",
        )
    known = "; ".join(
        f"--job {name} (up to step {max(one.manifest.step for saved in ranks.values() for one in saved)})"
        for name, ranks in sorted(found.items())
    )
    raise UsageError(
        field=f"--job {job}" if job else where,
        reason="has left no checkpoints there" if job else f"holds checkpoints of {len(found)} jobs",
        next_step=f"Name one of them: {known}.",
    )


def _check_all_there(worlds: Mapping[Rank, tuple[RunId, int]], where: str) -> None:
    """A rank that nothing is known of would keep the job from every common step."""
    run, count = max(worlds.values())
    missing = [rank for rank in map(Rank, range(count)) if rank not in worlds or worlds[rank][0] != run]
    if missing:
        raise UsageError(
            field=where,
            reason=f"holds no checkpoint of rank {', '.join(map(str, missing))} of run {run}",
            next_step=f"Name the directories of all {count} ranks, or one above them.",
        )


def write(found: Found) -> Path | None:
    """Make a store for each worker whose own is gone, so that it knows its job and where its rank has saved.

    What is in the way is archived, and nothing else is touched.

    Returns:
        Where that lies now; None: there was nothing.

    Raises:
        StoreLockedError: a process has a store of this path open.
        StoreError, RecoveryPathError: as `WorkerStore.open`.
    """
    path, archived = found.path, None
    if path.is_dir() and (scheduler_files(path) or set(stored_workers(path)) - found.known):
        archived = archive_stores(path, f"lost-{clock.wall_ms()}", pinned=found.known)
    for node_id, rows in found.rows.items():
        store = WorkerStore.open(path, node_id)
        try:
            store.apply(rows, wall_ms=clock.wall_ms())
        finally:
            store.close()
    return archived
