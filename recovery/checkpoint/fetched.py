"""A contribution that comes from another node: refused piece by piece where it does not fit, and published like one's own.

Nothing of it has a checkpoint's name before all of it is here, fits and is durable; then the files get their names, and the manifest last.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names, verify
from recovery.checkpoint.catalogue import held_of
from recovery.checkpoint.contribution import Manifest
from recovery.checkpoint.durable_files import (
    DigestingWriter,
    TemporaryFile,
    ensure_directory,
    open_regular,
    opened_directory,
)
from recovery.checkpoint.publish import PATH_CHARS_MAX, as_write_error, give_names
from recovery.checkpoint.verify import Wanted
from recovery.core.messages import HeldCheckpoint
from recovery.errors import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointWriteError,
)

SPARE_BYTES = 64 << 20
"""What a copy leaves free on its file system: the node's own saves and its store come first."""


class Receipt:
    """One contribution on its way in. Use as a context: what was not published is gone behind it. Blocks; not for an event loop."""

    def __init__(self, directory: Path, wanted: Wanted) -> None:
        """Prepare to take what is wanted into a directory, which is made if absent; nothing is made yet."""
        self._directory, self._wanted = directory.absolute(), wanted
        self._stack = contextlib.ExitStack()
        self._opened = -1
        self._content = b""
        self._staged: dict[int, TemporaryFile] = {}
        """Files that are written, by number; all but the last one fit."""
        self._writer: DigestingWriter | None = None
        self._manifest: Manifest | None = None

    def __enter__(self) -> Receipt:
        """Nothing is made before `accept`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove every temporary file of this attempt.

        Raises:
            CheckpointWriteError: the directory could not be closed: what was published may not be durable.
        """
        for staged in self._staged.values():
            staged.__exit__(kind, error, trace)
        with as_write_error(self._path()):
            self._stack.close()

    @property
    def manifest(self) -> Manifest | None:
        """What was accepted; None: nothing yet."""
        return self._manifest

    def accept(self, content: bytes) -> Manifest:
        """Take a manifest, if it is that of what is wanted. Its sizes bound what is read after it.

        Raises:
            CheckpointManifestError, CheckpointDigestError: it is not, or cannot be trusted.
            CheckpointWriteError: there is no space for its files here, or nothing can be written.
        """
        where = self._directory / f"{self._wanted.digest[:12]}{names.MANIFEST_SUFFIX}"
        manifest = manifests.parse(where, content)
        verify.compare(where, manifest, self._wanted)
        path = self._directory / manifest.file
        reason = _obstacle(path, manifest)
        if reason:
            raise CheckpointWriteError(path=path, reason=reason)
        with as_write_error(path):
            ensure_directory(self._directory)
            _check_space(self._directory, manifest)
            self._opened = self._stack.enter_context(opened_directory(self._directory))
        self._manifest, self._content = manifest, content
        return manifest

    def begin(self, number: int) -> None:
        """Begin a file, from its first byte; what an earlier source has given of it is dropped.

        Raises:
            CheckpointWriteError: it cannot be made.
        """
        assert self._manifest is not None, "a manifest comes before its files"
        before = self._staged.pop(number, None)
        if before is not None:
            before.__exit__(None, None, None)
        staged = self._staged[number] = TemporaryFile(self._opened, self._manifest.files[number].name)
        with as_write_error(self._path()):
            self._writer = staged.open()

    def take(self, piece: bytes) -> None:
        """Write and digest the next bytes of the file that was begun.

        Raises:
            CheckpointWriteError: they could not be written.
        """
        assert self._writer is not None, "a file is begun before it is filled"
        with as_write_error(self._path()):
            self._writer.write(piece)

    def end(self, number: int) -> None:
        """Compare the file with the manifest, and make it durable.

        Raises:
            CheckpointDigestError: it is damaged, where it lay or on its way.
            CheckpointWriteError: it could not be made durable.
        """
        writer, manifest = self._writer, self._manifest
        assert writer is not None, "a file is begun before it ends"
        assert manifest is not None, "as in begin"
        listed = manifest.files[number]
        for field, expected, found in (
            ("size", listed.file_bytes, writer.size),
            ("sha256", listed.digest, writer.digest()),
        ):
            if found != expected:
                raise CheckpointDigestError(
                    path=self._directory / listed.name, field=field, expected=expected, found=found
                )
        with as_write_error(self._path()):
            writer.drain()
            self._staged[number].settle()
        self._writer = None

    def publish(self, still_owns_rank: Callable[[], bool] = lambda: True) -> HeldCheckpoint:
        """Give the files and the manifest their names, which nothing had before that is worth keeping; gives the checkpoint as it lies here.

        `still_owns_rank` is as for `publish.StagedCheckpoint.finish`.

        Raises:
            CheckpointWriteError: it could not be published. No manifest stands there then.
        """
        manifest = self._manifest
        assert manifest is not None, "as in begin"
        assert len(self._staged) == len(manifest.files), "all files are here"
        path = self._directory / manifest.file
        staged = [self._staged[number] for number in range(len(manifest.files))]
        with as_write_error(self._path()):
            give_names(path, self._opened, staged, (manifest, self._content), still_owns_rank)
        return held_of(manifest, path)

    def _path(self) -> Path:
        return self._directory / (self._manifest.file if self._manifest is not None else "")


def _obstacle(path: Path, manifest: Manifest) -> str:
    """Why this node cannot hold it, from any source; empty: it can."""
    if any("/" in file.name for file in manifest.files):
        return "it is a folder that a framework wrote, and these are not copied"
    if names.parse(manifest.file) is None:
        return "its name is none of a checkpoint"
    if len(str(path)) > PATH_CHARS_MAX:
        return f"its path is longer than {PATH_CHARS_MAX} characters"
    return ""


def there_already(directory: Path, wanted: Wanted) -> HeldCheckpoint | None:
    """Look whether what is wanted lies in a directory already, whole and undamaged; None: it does not.

    Cost: reads every manifest there, and the files of the one that fits whole.
    """
    try:
        listed = sorted(entry for entry in directory.iterdir() if names.parse(entry.name) is not None)
    except OSError:
        return None
    for path in listed:
        try:
            manifest = manifests.read_for(names.manifest_path(path), file=path.name)
            if manifest.digest == wanted.digest:
                return held_of(verify.check_wanted(path, wanted), path)
        except CheckpointError:
            # Damaged, or another's: what is wanted comes from elsewhere, and its publication says what lies there.
            continue
    return None


def sealed_bytes(path: Path) -> bytes:
    """Read the manifest beside a checkpoint as it stands.

    Raises:
        OSError: it cannot be read.
    """
    with os.fdopen(open_regular(names.manifest_path(path)), "rb") as stream:
        return stream.read(manifests.BYTES_MAX)


def _check_space(directory: Path, manifest: Manifest) -> None:
    """Refuse what would fill the disk, before a byte of it is here.

    Raises:
        OSError: it does not fit.
    """
    facts = os.statvfs(directory)
    free = facts.f_bavail * facts.f_frsize
    if free < manifest.file_bytes + SPARE_BYTES:
        reason = f"{manifest.file_bytes} bytes and {SPARE_BYTES} to spare are needed, {free} are free"
        raise OSError(errno.ENOSPC, reason)
