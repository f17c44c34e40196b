"""Before a name is saved under again: what has the name is written over, kept under another name, or refuses the save.

Only this rank's own whole checkpoint of a history that was rolled back is written over. What is damaged, or of another rank, keeps its
bytes as `<name>.kept-<n>`, which is taken for no checkpoint and never removed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from pathlib import Path

import msgspec

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names, verify
from recovery.checkpoint.contribution import Manifest, not_of
from recovery.errors import CheckpointError, CheckpointManifestError, CheckpointWriteError
from recovery.file_systems import sync_names

_logger = logging.getLogger("recovery.checkpoint")


class NameConflict(msgspec.Struct, frozen=True):
    """What has the name now."""

    path: Path
    in_use: tuple[Path, ...]
    """Files that are there: those of the manifest that has the name, and those under the names of the new one."""
    surplus: tuple[Path, ...]
    """Those of them that the new one does not write over."""
    keep_because: str
    """Why they are kept under other names; empty: they may be written over, or there are none."""


def find(path: Path, manifest: Manifest) -> NameConflict:
    """Look at what has the name of a checkpoint that is about to be saved; `path` is absolute, of its first file.

    Raises:
        CheckpointWriteError: the name is another's: of another job or run, of another rank that shares the directory, or of a
            newer generation.

    Cost: nothing when the name is free; else the files are read whole once.
    """
    wanted = manifest.paths(path.parent)
    in_use = tuple(file for file in wanted if os.path.lexists(file))
    try:
        old = manifests.read_manifest(names.manifest_path(path))
    except CheckpointManifestError as error:
        return NameConflict(path, in_use, (), str(error) if in_use else "")
    if (old.job, old.run) != (manifest.job, manifest.run) or (
        old.rank != manifest.rank and old.generation >= manifest.generation
    ):
        raise CheckpointWriteError(
            path=path,
            reason=f"job {old.job!r} run {old.run} rank {old.rank} has saved under this name;"
            " every rank needs a directory of its own, every run a prefix of its own",
        )
    # A newer process of our id trains on: we are fenced and have not heard of it yet.
    if old.generation > manifest.generation:
        raise CheckpointWriteError(
            path=path,
            reason=f"generation {old.generation} has saved this step, this process is still in generation {manifest.generation}",
        )
    surplus = tuple(file for file in old.paths(path.parent) if file not in wanted and os.path.lexists(file))
    in_use += surplus
    return NameConflict(path, in_use, surplus, _violation(path, old, manifest) if in_use else "")


def _violation(path: Path, old: Manifest, manifest: Manifest) -> str:
    foreign = not_of(old, job=manifest.job, run=manifest.run, rank=manifest.rank)
    if foreign:
        return foreign
    try:
        verify.check(path.with_name(old.file))
    except CheckpointError as error:
        return str(error)
    return ""


def resolve(opened: int, conflict: NameConflict) -> None:
    """Free the name, in the directory that this descriptor has opened. The old manifest goes first, so it never stands beside new bytes.

    A process that dies between the renames leaves files without a manifest; the next save joins them under the same number.

    Raises:
        OSError: it could not be done; nothing is lost.
    """
    beside = names.manifest_path(conflict.path)
    if not conflict.keep_because:
        try:
            os.unlink(beside.name, dir_fd=opened)
        except FileNotFoundError:
            return
        sync_names(opened)
        for file in conflict.surplus:
            os.unlink(file.name, dir_fd=opened)
        return
    number = _free_number([*conflict.in_use, *([beside] if os.path.lexists(beside) else [])])
    with contextlib.suppress(FileNotFoundError):
        _rename(opened, beside, number)
    for file in conflict.in_use:
        kept = _rename(opened, file, number)
        _logger.warning("event=checkpoint_kept path=%s as=%s reason=%r", file, kept, conflict.keep_because)
    sync_names(opened)


def _free_number(files: list[Path]) -> int:
    """The first under which none of them lies; a manifest that is there already gets its files under the same number."""
    return next(
        number
        for number in itertools.count(1)
        if not any(os.path.lexists(file.with_name(_kept(file, number))) for file in files)
    )


def _rename(opened: int, file: Path, number: int) -> str:
    kept = _kept(file, number)
    os.rename(file.name, kept, src_dir_fd=opened, dst_dir_fd=opened)
    return kept


def _kept(file: Path, number: int) -> str:
    return f"{file.name}{names.KEPT_INFIX}{number}"
