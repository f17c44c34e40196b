"""Is everything what it was written as? Databases, rows, checkpoints, manifests, and what lies beside them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from recovery import clock
from recovery.checkpoint import folders, names, verify
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.files import is_temporary
from recovery.core.records import CheckpointState
from recovery.errors import CheckpointError, RecoveryError
from recovery.report.stored import Stored
from recovery.store.reader import check_scheduler, check_worker, read_worker, stored_workers

_SAVE_MS = 600_000
"""A temporary file that was written to within this may be a save under way."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    path: str
    what: str
    """A sentence, with what to do where that is not obvious."""


def databases(path: Path) -> Iterator[Finding]:
    """Check every store whole: SQLite's integrity, every row's digest, the event log included.

    Raises:
        RecoveryPathError: there is no scheduler's store at all.
    """
    checks = [(path / "scheduler.db", partial(check_scheduler, path))]
    checks += [
        (path / "workers" / f"{node_id}.db", partial(check_worker, path, node_id))
        for node_id in stored_workers(path)
    ]
    for file, check in checks:
        try:
            check()
        except RecoveryError as error:
            if not file.exists() and file.name == "scheduler.db":
                raise
            yield Finding(path=str(file), what=str(error))


def checkpoints(stored: Stored) -> Iterator[Finding]:
    """Check every checkpoint file that this host can see, and the scheduler's checkpoint index against them."""
    seen: set[str] = set()
    for directory in _directories(stored):
        for entry in sorted(directory.iterdir()):
            if is_temporary(entry.name):
                if clock.wall_ms() - entry.stat().st_mtime_ns // 1_000_000 < _SAVE_MS:
                    continue
                yield Finding(
                    path=str(entry), what="left over from a save that was cut off; no checkpoint needs it"
                )
            elif names.parse(entry.name) is not None:
                seen.add(str(entry))
                yield from _file(entry)
            elif _is_orphaned_manifest(entry):
                yield Finding(path=str(entry), what="a manifest without its checkpoint file")
        yield from _folders(directory, seen)
    yield from _missing(stored, seen)


def _folders(directory: Path, seen: set[str]) -> Iterator[Finding]:
    """Check the folders of a directory that have a manifest; others are the framework's alone."""
    listed = tuple(sorted(entry.name for entry in directory.iterdir()))
    for beside, folder, rank in folders.manifests_in(directory, listed):
        if not _is_manifest_of_folder(beside):
            continue
        if not folder.exists():
            yield Finding(path=str(beside), what="a manifest without its folder")
            continue
        seen.add(f"{folder}/")
        try:
            verify.check(folder, rank=rank)
        except CheckpointError as error:
            yield Finding(path=str(folder), what=str(error))


def _is_manifest_of_folder(entry: Path) -> bool:
    try:
        return entry.suffix == names.MANIFEST_SUFFIX and manifests.read(entry).is_folder
    except CheckpointError:
        return False


def _file(entry: Path) -> Iterator[Finding]:
    try:
        verify.check(entry)
    except CheckpointError as error:
        yield Finding(path=str(entry), what=str(error))


def _is_orphaned_manifest(entry: Path) -> bool:
    files = [entry.with_name(entry.stem + suffix) for suffix in names.SUFFIXES]
    return (
        entry.suffix == names.MANIFEST_SUFFIX
        and any(names.parse(file.name) is not None for file in files)
        and not any(file.exists() for file in files)
    )


def _missing(stored: Stored, seen: set[str]) -> Iterator[Finding]:
    """A committed checkpoint of the newest step must be there, where its directory is."""
    of_run = [one for one in stored.checkpoints if one.run == stored.job.run]
    newest = max((one.step for one in of_run if one.state is CheckpointState.COMMITTED), default=0)
    for one in of_run:
        expected = one.state is CheckpointState.COMMITTED and one.step == newest
        if expected and one.path not in seen and Path(one.path).parent.is_dir():
            what = f"the scheduler's checkpoint index says that rank {one.rank} holds step {one.step} there, but it is gone"
            yield Finding(path=one.path, what=what)


def _directories(stored: Stored) -> list[Path]:
    """Every directory of this host that a worker has ever saved to."""
    found = {Path(one.path).parent for one in stored.checkpoints}
    for node_id in stored_workers(stored.path):
        try:
            found |= {
                Path(one.path)
                for one in read_worker(stored.path, node_id, accept_without_wal=True).directories
            }
        except RecoveryError:
            # `databases` reports it.
            continue
    return sorted(path for path in found if path.is_dir())
