"""Is everything what it was written as? Databases, rows, checkpoints, copies, manifests, and what lies beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Union

import msgspec

from recovery import clock
from recovery.checkpoint import framework_folders, names, verify
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.durable_files import is_temporary
from recovery.core.copy_records import CopyRecord
from recovery.core.records import CheckpointRecord, CheckpointState, NodeRecord
from recovery.core.tiers import tier_of
from recovery.errors import CheckpointError, RecoveryError
from recovery.report.stored import Stored
from recovery.store.lock import OwnerState, held_locks, owner_state
from recovery.store.paths import scheduler_path, worker_path
from recovery.store.reader import check_scheduler, check_worker, read_worker, stored_workers
from recovery.transport.local_address import is_local

_Seen = set[tuple[str, Union[int, None]]]
"""Paths, as the index has them, and of folders that ranks write together whose manifest vouches for them."""
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
    try:
        check_scheduler(path)
    except RecoveryError as error:
        file = scheduler_path(path)
        # Of Path it raises where the directory may not be looked into.
        if not os.path.exists(file):  # noqa: PTH110 - see above
            raise
        yield Finding(path=str(file), what=str(error))
    yield from workers_databases(path)


def workers_databases(path: Path) -> Iterator[Finding]:
    """The same of the workers' own stores alone."""
    for node_id in stored_workers(path):
        try:
            check_worker(path, node_id)
        except RecoveryError as error:
            yield Finding(path=str(worker_path(path, node_id)), what=str(error))


def checkpoints(read: Callable[[], Stored]) -> list[Finding]:
    """Check every checkpoint file and every copy that this host can see, and what the scheduler knows against them.

    A job that trains removes what it needs no more: what counts is found by a second look too, at these files, with what is known then.

    Args:
        read: reads what is known, as of now.
    """
    found = list(_look(read(), None))
    if not found:
        return []
    again = {finding.path for finding in _look(read(), {finding.path for finding in found})}
    return [finding for finding in found if finding.path in again]


def _look(stored: Stored, only: Container[str] | None) -> Iterator[Finding]:
    """Of the checkpoints that are there, verify these; None: all."""
    seen: _Seen = set()
    indexed = frozenset(record.path for record in stored.checkpoints)
    for directory in _directories(stored):
        listed = _listed(directory)
        for entry in (directory / name for name in listed):
            if is_temporary(entry.name):
                if not _is_left_over(entry):
                    continue
                yield Finding(
                    path=str(entry), what="left over from a save that was cut off; no checkpoint needs it"
                )
            elif names.parse(entry.name) is not None:
                seen.add((str(entry), None))
                yield from _checked(entry, only)
            elif _is_orphaned_manifest(entry):
                yield Finding(path=str(entry), what="a manifest without its checkpoint file")
        yield from _folders(directory, listed, seen, indexed, only)
    here = _nodes_here(stored)
    for record in _expected(stored):
        if (
            _is_on_this_host(record, here)
            and not {(record.path, None), (record.path, int(record.rank))} & seen
        ):
            yield Finding(path=record.path, what=f"{_said_of(record)}, but it, or its manifest, is gone")


def not_looked_at(stored: Stored) -> tuple[str, ...]:
    """What is on other hosts, as sentences: nothing is said of it."""
    here = _nodes_here(stored)
    return tuple(
        f"{record.path}: {_said_of(record)}, on another host"
        for record in _expected(stored)
        if not _is_on_this_host(record, here)
    )


def _listed(directory: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except FileNotFoundError:
        # Meanwhile.
        return ()


def _is_left_over(entry: Path) -> bool:
    try:
        return clock.wall_ms() - entry.stat().st_mtime_ns // 1_000_000 >= _SAVE_MS
    except FileNotFoundError:
        return False


def _folders(
    directory: Path,
    listed: tuple[str, ...],
    seen: _Seen,
    indexed: frozenset[str],
    only: Container[str] | None,
) -> Iterator[Finding]:
    """Check the folders of a directory that have a manifest; others are the framework's alone, as is a JSON file of no rank's name."""
    for beside, folder, rank in framework_folders.manifests_in(directory, listed):
        try:
            if not manifests.read_manifest(beside).is_folder:
                continue
        except CheckpointError as error:
            if folder.is_dir() and (rank is not None or f"{folder}/" in indexed):
                seen.add((f"{folder}/", rank))
                yield Finding(path=str(beside), what=str(error))
            continue
        if not folder.exists():
            yield Finding(path=str(beside), what="a manifest without its folder")
            continue
        seen.add((f"{folder}/", rank))
        yield from _checked(folder, only, rank)


def _checked(entry: Path, only: Container[str] | None, rank: int | None = None) -> Iterator[Finding]:
    if only is not None and str(entry) not in only:
        return
    try:
        verify.check(entry, rank=rank)
    except CheckpointError as error:
        yield Finding(path=str(entry), what=str(error))


def _is_orphaned_manifest(entry: Path) -> bool:
    files = [entry.with_name(entry.stem + suffix) for suffix in names.SUFFIXES]
    return (
        entry.suffix == names.MANIFEST_SUFFIX
        and any(names.parse(file.name) is not None for file in files)
        and not any(file.exists() for file in files)
    )


def _expected(stored: Stored) -> list[Union[CheckpointRecord, CopyRecord]]:
    """What must be there: every rank's files of the newest committed step on disks, and the copies of it.

    What lies in memory goes with its host and with the job.
    """
    of_run = [
        record
        for record in stored.checkpoints
        if record.run == stored.job.run
        and record.state is CheckpointState.COMMITTED
        and tier_of(record.path).is_durable
    ]
    newest = max((record.step for record in of_run), default=0)
    return [
        *(record for record in of_run if record.step == newest),
        *(
            copy
            for copy in stored.copies
            if (copy.run, copy.step) == (stored.job.run, newest) and tier_of(copy.path).is_durable
        ),
    ]


def _said_of(record: Union[CheckpointRecord, CopyRecord]) -> str:
    if isinstance(record, CopyRecord):
        return (
            f"{record.node_id} has said that it holds a copy of rank {record.rank}'s step {record.step} there"
        )
    return f"the scheduler's checkpoint index says that rank {record.rank} holds step {record.step} there"


def _nodes_here(stored: Stored) -> tuple[NodeRecord, ...]:
    """The nodes of this host, of a job that ran here: each host has a 127.0.0.1."""
    if owner_state(scheduler_path(stored.path), held_locks()) is OwnerState.UNKNOWN:
        return ()
    local = {host for host in {node.host for node in stored.nodes} if is_local(host)}
    return tuple(node for node in stored.nodes if node.host in local)


def _is_on_this_host(record: Union[CheckpointRecord, CopyRecord], here: tuple[NodeRecord, ...]) -> bool:
    """Would it lie here? Where its directory is, it is; else it would be its node's."""
    if Path(record.path).parent.is_dir():
        return True
    return any(
        node.node_id == record.node_id if isinstance(record, CopyRecord) else node.rank == record.rank
        for node in here
    )


def _directories(stored: Stored) -> list[Path]:
    """Every directory of this host that a worker has ever saved to, and those of the copies that its nodes hold for others."""
    found = {Path(record.path).parent for record in stored.checkpoints}
    found |= {Path(copy.path).parent for copy in stored.copies}
    found |= set((stored.path.absolute() / "workers").glob("*.copies/*/run-*/rank-*"))
    for node_id in stored_workers(stored.path):
        try:
            found |= {
                Path(record.path)
                for record in read_worker(stored.path, node_id, accept_without_wal=True).directories
            }
        except RecoveryError:
            # `databases` reports it.
            continue
    return sorted(path for path in found if path.is_dir())
