"""How a checkpoint comes to be: a file under its final name with a manifest beside it is always complete and durable.

Both files are first written and fsynced under temporary names, so that a full disk is met before anything has changed.
Then the state gets its name, then the manifest. Whoever dies in between leaves a file without a manifest: no checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names
from recovery.checkpoint.files import DigestingWriter, Staged, ensure_directory, opened_directory, reason_of
from recovery.checkpoint.manifest import Manifest
from recovery.errors import CheckpointManifestError, CheckpointWriteError

__all__ = ["PATH_CHARS_MAX", "DigestingWriter", "Stage", "publish", "stage"]

PATH_CHARS_MAX = 1_024
"""Longest path that a message to the scheduler carries (`messages.ShortText`); a longer one could not be reported."""


def publish(
    directory: Path,
    name: str,
    write_state: Callable[[BinaryIO], None],
    make_manifest: Callable[[str, int], Manifest],
) -> tuple[Manifest, Path]:
    """Write one checkpoint file and its manifest, durable when this returns: `stage`, then `Stage.finish`."""
    return stage(directory, name, write_state).finish(make_manifest)


def stage(directory: Path, name: str, write_state: Callable[[BinaryIO], None]) -> Stage:
    """Write the bytes of one checkpoint, so that the state may change again. They are no checkpoint before `Stage.finish`.

    Args:
        directory: where to; made if absent.
        name: as `names.file_name` makes it.
        write_state: writes the state to a stream that only grows. What it raises itself, other than an OSError, passes through.

    Raises:
        CheckpointWriteError: it was not written. Its temporary file is gone, older checkpoints are untouched.

    Cost: one pass over the bytes, written and digested together, into the system's cache.
    """
    assert names.parse(name) is not None, f"{name!r} is no checkpoint name"
    path = directory.absolute() / name
    _check_path(path)
    with _told_as_write_error(path), contextlib.ExitStack() as stack:
        ensure_directory(path.parent)
        opened = stack.enter_context(opened_directory(path.parent))
        state = stack.enter_context(Staged(opened, name))
        digest, file_bytes = state.write(write_state)
        return Stage(path, opened, state, (digest, file_bytes), stack.pop_all())


class Stage:
    """A checkpoint whose bytes are written and not yet durable. `finish` is called once, from any thread."""

    def __init__(
        self, path: Path, opened: int, state: Staged, content: tuple[str, int], stack: contextlib.ExitStack
    ) -> None:
        """Made by `stage`."""
        self._path, self._opened, self._state, self._content, self._stack = (
            path,
            opened,
            state,
            content,
            stack,
        )

    def finish(self, make_manifest: Callable[[str, int], Manifest]) -> tuple[Manifest, Path]:
        """Make the file durable and visible, and its manifest after it.

        Args:
            make_manifest: given SHA-256 (hex) and size (bytes) of the file, makes its manifest.

        Returns:
            The manifest and the absolute path of the file.

        Raises:
            CheckpointWriteError: it was not saved. The temporary files of this attempt are gone, older checkpoints untouched.

        Cost: four fsyncs; one more when the name was in use.
        """
        path, digest, file_bytes = self._path, *self._content
        with _told_as_write_error(path), self._stack as stack:
            self._state.settle()
            manifest = make_manifest(digest, file_bytes)
            assert (manifest.file, manifest.digest, manifest.file_bytes) == (path.name, digest, file_bytes), (
                "a manifest is of the file that was just written"
            )
            beside = stack.enter_context(Staged(self._opened, names.manifest_path(path).name))
            beside.write(lambda stream: manifests.fill(manifest, stream))
            beside.settle()
            _make_way(self._opened, path, manifest)
            self._state.rename()
            beside.rename()
        return manifest, path


@contextlib.contextmanager
def _told_as_write_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointWriteError(path=path, reason=reason_of(error)) from error


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
        CheckpointWriteError: the name is another's: of another job or run, of another rank that shares the directory, or of a
            newer generation.
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
    if (
        old is not None and old.generation > manifest.generation
    ):  # somebody of our id trains on: we are fenced and not told yet
        raise CheckpointWriteError(
            path=path,
            reason=f"generation {old.generation} has saved this step, this process is still in generation {manifest.generation}",
        )
    try:
        os.unlink(beside.name, dir_fd=opened)
    except FileNotFoundError:
        return
    os.fsync(opened)
