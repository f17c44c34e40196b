"""How a checkpoint comes to be: a file under its final name with a manifest beside it is always complete and durable.

Both files are first written and fsynced under temporary names, so that a full disk is met before anything has changed.
Then the state gets its name, then the manifest. Whoever dies in between leaves a file without a manifest: no checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names
from recovery.checkpoint.files import DigestingWriter, Staged, ensure_directory, opened_directory, reason_of
from recovery.checkpoint.manifest import Manifest
from recovery.errors import CheckpointManifestError, CheckpointWriteError

__all__ = ["PATH_CHARS_MAX", "DigestingWriter", "publish"]

PATH_CHARS_MAX = 1_024
"""Longest path that a message to the scheduler carries (`messages.ShortText`); a longer one could not be reported."""


def publish(
    directory: Path,
    name: str,
    write_state: Callable[[BinaryIO], None],
    make_manifest: Callable[[str, int], Manifest],
) -> tuple[Manifest, Path]:
    """Write one checkpoint file and its manifest, durable when this returns.

    Args:
        directory: where to; made if absent.
        name: as `names.file_name` makes it.
        write_state: writes the state to a stream that only grows. What it raises itself, other than an OSError, passes through.
        make_manifest: given SHA-256 (hex) and size (bytes) of the file, makes its manifest.

    Returns:
        The manifest and the absolute path of the file.

    Raises:
        CheckpointWriteError: it was not saved. The temporary files of this attempt are gone, older checkpoints untouched.

    Cost: one pass over the bytes (write and digest together), four fsyncs; one more when the name was in use.
    """
    assert names.parse(name) is not None, f"{name!r} is no checkpoint name"
    path = directory.absolute() / name
    _check_path(path)
    try:
        ensure_directory(path.parent)
        with (
            opened_directory(path.parent) as opened,
            Staged(opened, name) as state,
            Staged(opened, names.manifest_path(path).name) as beside,
        ):
            digest, file_bytes = state.write(write_state)
            manifest = make_manifest(digest, file_bytes)
            assert (manifest.file, manifest.digest, manifest.file_bytes) == (name, digest, file_bytes), (
                "a manifest is of the file that was just written"
            )
            beside.write(lambda stream: manifests.fill(manifest, stream))
            _make_way(opened, path, manifest)
            state.rename()
            beside.rename()
    except OSError as error:
        raise CheckpointWriteError(path=path, reason=reason_of(error)) from error
    return manifest, path


def _check_path(path: Path) -> None:
    """Refuse a path that no message could carry, before anything is written."""
    text = str(path)
    if len(text) > PATH_CHARS_MAX:
        raise CheckpointWriteError(path=path, reason=f"its path is longer than {PATH_CHARS_MAX} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointWriteError(
            path=text.encode(errors="backslashreplace").decode(), reason="its path is not UTF-8"
        ) from error


def _make_way(opened: int, path: Path, manifest: Manifest) -> None:
    """Before the same step is saved again after a rollback: its old manifest goes first, so it never stands beside new bytes.

    Raises:
        CheckpointWriteError: the name is another's: of another job or run, or of another rank that shares the directory.
    """
    beside = names.manifest_path(path)
    try:
        old = manifests.read(beside)
    except CheckpointManifestError:
        old = None
    if old is not None and (old.job, old.run, old.rank) != (manifest.job, manifest.run, manifest.rank):
        raise CheckpointWriteError(
            path=path,
            reason=f"job {old.job!r} run {old.run} rank {old.rank} has saved under this name;"
            " every rank needs a directory of its own, every run a prefix of its own",
        )
    try:
        os.unlink(beside.name, dir_fd=opened)
    except FileNotFoundError:
        return
    os.fsync(opened)
