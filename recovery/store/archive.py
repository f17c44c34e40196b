"""Archive a job's stores, so that its recovery path can begin a new job. Nothing is deleted."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from recovery.core.records import JobRecord
from recovery.errors import RecoveryPathError, StoreError
from recovery.store.lock import OwnerLock
from recovery.store.paths import (
    RESET,
    absent,
    companion,
    fsync_directory,
    is_there,
    refused,
    scheduler_path,
    worker_path,
)
from recovery.store.reader import read_scheduler, read_worker, stored_workers

_PARTS = ("", "-wal", "-shm", ".commits")
"""All that holds rows or counts them. The locks stay: moving one would let two owners in."""


def archive_stores(recovery_path: Path, name: str, *, pinned: Container[str] = ()) -> Path:
    """Move every store into a new directory, while all of them are locked.

    Args:
        recovery_path: the directory of the job.
        name: of the new directory below it.
        pinned: node ids of workers whose stores stay.

    Returns:
        The new directory.

    Raises:
        RecoveryPathError: there is no store at all, or something cannot be moved.
        StoreLockedError: a process has one of them open.
        StoreError: what lies there is no store of ours.
    """
    databases = [scheduler_path(recovery_path)]
    databases += [
        worker_path(recovery_path, node_id)
        for node_id in stored_workers(recovery_path)
        if node_id not in pinned
    ]
    if len(databases) == 1 and not scheduler_files(recovery_path):
        raise absent(databases[0])
    if databases[0].exists():
        is_there(databases[0])
    return _archived(recovery_path, name, databases)


def scheduler_files(recovery_path: Path) -> tuple[str, ...]:
    """Names of the files of a scheduler's store that are there: all of them, or what is left of a lost one."""
    files = (companion(scheduler_path(recovery_path), part) for part in _PARTS)
    return tuple(file.name for file in files if os.path.lexists(file))


def archive_scheduler_store(recovery_path: Path, name: str) -> Path | None:
    """Move the scheduler's store, or what is left of one, as `archive_stores`; None: there is nothing of it."""
    if not scheduler_files(recovery_path):
        return None
    return _archived(recovery_path, name, [scheduler_path(recovery_path)])


def archived_jobs(recovery_path: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    """Jobs that a person has archived below this path, and why any of them could not be read."""
    jobs: set[str] = set()
    unreadable: list[str] = []
    for directory in sorted(recovery_path.glob(f"{RESET}*")):
        found: list[JobRecord | None] = []
        try:
            workers = stored_workers(directory)
            if scheduler_files(directory) or not workers:
                found.append(read_scheduler(directory, accept_without_wal=True).job)
            found += [read_worker(directory, name, accept_without_wal=True).job for name in workers]
        except (StoreError, RecoveryPathError) as error:
            unreadable.append(str(error))
        jobs |= {job.job for job in found if job is not None}
    return frozenset(jobs), tuple(unreadable)


def _archived(recovery_path: Path, name: str, databases: Sequence[Path]) -> Path:
    archive = recovery_path / name
    with ExitStack() as locked:
        for database in databases:
            locked.callback(OwnerLock(database).release)
        try:
            archive.mkdir()
            for database in databases:
                _move(database, archive / database.relative_to(recovery_path))
            fsync_directory(recovery_path)
        except OSError as error:
            raise refused(archive, error) from error
    return archive


def _move(database: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    for part in _PARTS:
        with suppress(FileNotFoundError):
            companion(database, part).rename(companion(target, part))
    for directory in (target.parent, database.parent):
        fsync_directory(directory)
