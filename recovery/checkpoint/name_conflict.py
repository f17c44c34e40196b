"""Before a name is saved under again: what has the name is written over, kept under another name, or refuses the save.

Only this rank's own whole file of a history that was rolled back is written over. What is damaged, or of another rank, keeps its
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
from recovery.checkpoint.manifest import Manifest
from recovery.errors import CheckpointError, CheckpointManifestError, CheckpointWriteError

_logger = logging.getLogger("recovery.checkpoint")


class NameConflict(msgspec.Struct, frozen=True):
    """What has the name now."""

    path: Path
    keep_because: str
    """Why the file is kept under another name; empty: it may be written over, or there is none."""


def find(path: Path, manifest: Manifest) -> NameConflict:
    """Look at what has the name of a checkpoint that is about to be saved.

    Args:
        path: absolute, of the file.
        manifest: of what is saved.

    Raises:
        CheckpointWriteError: the name is another's: of another job or run, of another rank that shares the directory, or of a
            newer generation.

    Cost: nothing when the name is free; else the file is read whole once.
    """
    try:
        old = manifests.read(names.manifest_path(path))
    except CheckpointManifestError as error:
        return NameConflict(path, str(error) if _is_there(path) else "")
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
    return NameConflict(path, _fault_of(path, old, manifest) if _is_there(path) else "")


def _fault_of(path: Path, old: Manifest, manifest: Manifest) -> str:
    foreign = manifests.not_of(old, job=manifest.job, run=manifest.run, rank=manifest.rank)
    if foreign:
        return foreign
    try:
        verify.check(path)
    except CheckpointError as error:
        return str(error)
    return ""


def resolve(opened: int, conflict: NameConflict) -> None:
    """Free the name. The old manifest goes first, so it never stands beside new bytes.

    Whoever dies between the two renames leaves a file without a manifest; the next save joins them under the same number.

    Args:
        opened: descriptor of the directory.
        conflict: what `find` found.

    Raises:
        OSError: it could not be done; nothing is lost.
    """
    beside = names.manifest_path(conflict.path)
    if not conflict.keep_because:
        try:
            os.unlink(beside.name, dir_fd=opened)
        except FileNotFoundError:
            return
        os.fsync(opened)
        return
    number = _free_number(conflict.path, beside)
    kept = f"{conflict.path.name}{names.KEPT_INFIX}{number}"
    with contextlib.suppress(FileNotFoundError):
        _rename(opened, beside.name, f"{beside.name}{names.KEPT_INFIX}{number}")
    _rename(opened, conflict.path.name, kept)
    os.fsync(opened)
    _logger.warning(
        "event=checkpoint_kept path=%s as=%s reason=%r", conflict.path, kept, conflict.keep_because
    )


def _free_number(path: Path, beside: Path) -> int:
    """The first under which neither lies; a manifest that is there already gets its file under the same number."""
    pair = [path, *([beside] if _is_there(beside) else [])]
    return next(
        number
        for number in itertools.count(1)
        if not any(_is_there(one.with_name(f"{one.name}{names.KEPT_INFIX}{number}")) for one in pair)
    )


def _rename(opened: int, name: str, kept: str) -> None:
    os.rename(name, kept, src_dir_fd=opened, dst_dir_fd=opened)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)
