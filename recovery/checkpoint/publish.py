"""How a checkpoint comes to be: a manifest under its final name has all of its files beside it, complete and durable.

All files are first written and fsynced under temporary names, so that a full disk is met before anything has changed.
Then the files get their names, then the manifest. A process that dies in between leaves files without a manifest: no checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import name_conflict, names
from recovery.checkpoint.contribution import FileRole, Manifest, ManifestFile
from recovery.checkpoint.durable_files import TemporaryFile, ensure_directory, opened_directory
from recovery.errors import CheckpointWriteError
from recovery.file_systems import words_of

PATH_CHARS_MAX = 1_024
"""Longest path that a message to the scheduler carries (`message_fields.ShortText`); a longer one could not be reported."""


class Content(msgspec.Struct, frozen=True):
    """One file that is to be written."""

    name: str
    """Of a checkpoint's first file as `names.file_name` makes it; of the others any plain name that belongs to no other checkpoint."""
    write: Callable[[BinaryIO], None]
    """Writes the content to a stream that only grows. What it raises itself, other than an OSError, passes through."""
    role: FileRole = FileRole.STATE


class WrittenContent(msgspec.Struct, frozen=True):
    """One file that another process writes, which digests what it writes."""

    name: str
    """As of `Content`."""
    write: Callable[[int], tuple[str, int]]
    """Given the descriptor of an empty file, writes it and says its SHA-256 (hex) and size. An OSError fails the save."""
    role: FileRole = FileRole.STATE


def publish(
    directory: Path,
    contents: Sequence[Content | WrittenContent],
    make_manifest: Callable[[tuple[ManifestFile, ...]], Manifest],
) -> tuple[Manifest, Path]:
    """Write the files of one checkpoint and their manifest, durable when this returns: `stage`, then `StagedCheckpoint.finish`.

    For a writer that no other process can have replaced meanwhile.
    """
    return stage(directory, contents).finish(make_manifest, lambda: True)


def stage(directory: Path, contents: Sequence[Content | WrittenContent]) -> StagedCheckpoint:
    """Write the bytes of one checkpoint, which has the name of its first file, so that the state may change again.

    They are no checkpoint before `StagedCheckpoint.finish`. The directory is made if absent.

    Raises:
        CheckpointWriteError: it was not written. Its temporary files are gone, older checkpoints are untouched.

    Cost: one pass over the bytes, written and digested together, into the system's cache.
    """
    name = contents[0].name
    assert names.parse(name) is not None, f"{name!r} is no checkpoint name"
    path = directory.absolute() / name
    check_path(path)
    with as_write_error(path), contextlib.ExitStack() as stack:
        ensure_directory(path.parent)
        opened = stack.enter_context(opened_directory(path.parent))
        staged = []
        for content in contents:
            file = stack.enter_context(TemporaryFile(opened, content.name))
            if isinstance(content, WrittenContent):
                digest, file_bytes = file.write_by(content.write)
            else:
                digest, file_bytes = file.write(content.write)
            listed = ManifestFile(name=content.name, role=content.role, file_bytes=file_bytes, digest=digest)
            staged.append((file, listed))
        return StagedCheckpoint(path, opened, staged, stack.pop_all())


class StagedCheckpoint:
    """A checkpoint whose bytes are written and not yet durable. `finish` is called once, from any thread."""

    def __init__(
        self,
        path: Path,
        opened: int,
        staged: Sequence[tuple[TemporaryFile, ManifestFile]],
        stack: contextlib.ExitStack,
    ) -> None:
        """Made by `stage`."""
        self._path, self._opened, self._staged, self._stack = path, opened, staged, stack

    def finish(
        self,
        make_manifest: Callable[[tuple[ManifestFile, ...]], Manifest],
        still_owns_rank: Callable[[], bool],
    ) -> tuple[Manifest, Path]:
        """Make the files durable and visible, and their manifest after them; gives it with its digest, and the first file's absolute path.

        `still_owns_rank` is asked right before each change of what has its final name: a process that was paused in between may have been
        replaced by one that saves under the same names.

        Raises:
            CheckpointWriteError: it was not saved. The temporary files of this attempt are gone, older checkpoints untouched.

        Cost: two fsyncs for each file and for the manifest; when the name was in use, one more, and the old files are read whole.
        """
        path, files = self._path, tuple(listed for _, listed in self._staged)
        with as_write_error(path), self._stack:
            for file, _ in self._staged:
                file.settle()
            manifest, content = manifests.seal(make_manifest(files))
            assert manifest.files == files, "a manifest is of the files that were just written"
            staged = [file for file, _ in self._staged]
            give_names(path, self._opened, staged, (manifest, content), still_owns_rank)
        return manifest, path


def give_names(
    path: Path,
    opened: int,
    staged: Sequence[TemporaryFile],
    sealed: tuple[Manifest, bytes],
    still_owns_rank: Callable[[], bool],
) -> None:
    """Make files visible that are written and synced, in their manifest's order, and the manifest after them. `path` is of the first one.

    Raises:
        CheckpointWriteError: the name is another's, or the place.
        OSError: a call failed. No manifest stands there then.
    """
    manifest, content = sealed
    with TemporaryFile(opened, names.manifest_path(path).name) as beside:
        beside.write(lambda stream: manifests.fill(content, stream))
        beside.settle()
        conflict = name_conflict.find(path, manifest)
        check_place(path, still_owns_rank)
        name_conflict.resolve(opened, conflict)
        for file in staged:
            check_place(path, still_owns_rank)
            file.rename()
        check_place(path, still_owns_rank)
        beside.rename()


def check_place(path: Path, still_owns_rank: Callable[[], bool]) -> None:
    """Refuse to give a name to what a process has written that was replaced meanwhile.

    Raises:
        CheckpointWriteError: the place is another's.
    """
    if not still_owns_rank():
        raise CheckpointWriteError(
            path=path, reason="this process was paused, and another one has its place now"
        )


@contextlib.contextmanager
def as_write_error(path: Path) -> Iterator[None]:
    """Let an OSError in the block come out as the CheckpointWriteError of this path."""
    try:
        yield
    except OSError as error:
        raise CheckpointWriteError(path=path, reason=words_of(error, path)) from error


def check_path(path: Path) -> None:
    """Refuse a path that no message could carry, before anything is written.

    Raises:
        CheckpointWriteError: it is too long, or not UTF-8.
    """
    text = str(path)
    if len(text) > PATH_CHARS_MAX:
        raise CheckpointWriteError(path=path, reason=f"its path is longer than {PATH_CHARS_MAX} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointWriteError(
            path=text.encode(errors="backslashreplace").decode(), reason="its path is not UTF-8"
        ) from error
