"""How a checkpoint comes to be: a file under its final name with a manifest beside it is always complete and durable.

Both files are first written and fsynced under temporary names, so that a full disk is met before anything has changed.
Then the state gets its name, then the manifest. Whoever dies in between leaves a file without a manifest: no checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import name_conflict, names
from recovery.checkpoint.files import Staged, ensure_directory, opened_directory, reason_of
from recovery.checkpoint.manifest import Manifest
from recovery.errors import CheckpointWriteError

PATH_CHARS_MAX = 1_024
"""Longest path that a message to the scheduler carries (`message_fields.ShortText`); a longer one could not be reported."""


def publish(
    directory: Path,
    name: str,
    write_state: Callable[[BinaryIO], None],
    make_manifest: Callable[[str, int], Manifest],
) -> tuple[Manifest, Path]:
    """Write one checkpoint file and its manifest, durable when this returns: `stage`, then `Stage.finish`.

    For a writer that no other process can have replaced meanwhile.
    """
    return stage(directory, name, write_state).finish(make_manifest, lambda: True)


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
    with _as_write_error(path), contextlib.ExitStack() as stack:
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
        self._path, self._opened, self._state = path, opened, state
        self._content, self._stack = content, stack

    def finish(
        self, make_manifest: Callable[[str, int], Manifest], place_is_ours: Callable[[], bool]
    ) -> tuple[Manifest, Path]:
        """Make the file durable and visible, and its manifest after it.

        Args:
            make_manifest: given SHA-256 (hex) and size (bytes) of the file, makes its manifest.
            place_is_ours: asked right before each change of what has its final name: a process that was paused in between may have
                been replaced by one that saves under the same names.

        Returns:
            The manifest and the absolute path of the file.

        Raises:
            CheckpointWriteError: it was not saved. The temporary files of this attempt are gone, older checkpoints untouched.

        Cost: four fsyncs; when the name was in use, one more, and the old file is read whole.
        """
        path, digest, file_bytes = self._path, *self._content
        with _as_write_error(path), self._stack as stack:
            self._state.settle()
            manifest = make_manifest(digest, file_bytes)
            assert (manifest.file, manifest.digest, manifest.file_bytes) == (path.name, digest, file_bytes), (
                "a manifest is of the file that was just written"
            )
            beside = stack.enter_context(Staged(self._opened, names.manifest_path(path).name))
            beside.write(lambda stream: manifests.fill(manifest, stream))
            beside.settle()
            conflict = name_conflict.find(path, manifest)
            check_place(path, place_is_ours)
            name_conflict.resolve(self._opened, conflict)
            check_place(path, place_is_ours)
            self._state.rename()
            check_place(path, place_is_ours)
            beside.rename()
        return manifest, path


def check_place(path: Path, place_is_ours: Callable[[], bool]) -> None:
    """Refuse to give a name to what a process has written that was replaced meanwhile.

    Raises:
        CheckpointWriteError: the place is another's.
    """
    if not place_is_ours():
        raise CheckpointWriteError(
            path=path, reason="this process was paused, and another one has its place now"
        )


@contextlib.contextmanager
def _as_write_error(path: Path) -> Iterator[None]:
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
