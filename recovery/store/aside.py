"""Lay a job's stores aside, so that its recovery path can begin a new job. Nothing is deleted."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

from recovery.store.lock import OwnerLock
from recovery.store.paths import absent, companion, fsync_directory, is_there, refused
from recovery.store.reader import stored_workers
from recovery.store.repository import scheduler_path, worker_path

_PARTS = ("", "-wal", "-shm", ".commits")
"""All that holds rows or tells of them. The locks stay: moving one would let two owners in."""


def lay_aside(recovery_path: Path, name: str) -> Path:
    """Move every store into a new directory, while all of them are locked.

    Args:
        recovery_path: the directory of the job.
        name: of the new directory below it.

    Returns:
        The new directory.

    Raises:
        RecoveryPathError: there is no scheduler's store, or something cannot be moved.
        StoreLockedError: a process has one of them open.
        StoreError: what lies there is no store of ours.
    """
    databases = [scheduler_path(recovery_path)]
    databases += [worker_path(recovery_path, node_id) for node_id in stored_workers(recovery_path)]
    if not is_there(databases[0]):
        raise absent(databases[0])
    aside = recovery_path / name
    with ExitStack() as locked:
        for database in databases:
            locked.callback(OwnerLock(database).release)
        try:
            aside.mkdir()
            for database in databases:
                _move(database, aside / database.relative_to(recovery_path))
            fsync_directory(recovery_path)
        except OSError as error:
            raise refused(aside, error) from error
    return aside


def _move(database: Path, place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    for part in _PARTS:
        with suppress(FileNotFoundError):
            companion(database, part).rename(companion(place, part))
    for directory in (place.parent, database.parent):
        fsync_directory(directory)
