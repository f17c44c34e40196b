"""A URL of object storage, through fsspec: objects are created once, read, listed and removed. Blocks; not for an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import math
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from recovery import file_systems
from recovery.errors import CheckpointError, CheckpointManifestError, CheckpointWriteError
from recovery.transport.blocking_calls import Calls

PIECE_BYTES = 2 << 20
"""Read at once from an object that may be larger than memory."""
PART_BYTES = 16 << 20
"""Sent at once of a file that may be larger than memory, by an S3 driver."""
_PARTS_AT_ONCE = 2
"""The driver's own ten parts of 50 MiB would take half a gigabyte of each rank's host."""
_PARTS_MAX = 10_000
"""Of one object, as S3 has it: a file that would have more has larger ones."""
_CALLS_AT_ONCE = 4
"""Names that are looked up and clients that are made side by side."""
PATIENCE_S = 30.0
"""How long one question to the storage may take, or one piece that is read, with all that the driver tries again by itself."""
_MOVES_S = 120.0
"""How long a part of a file may be on its way up. A write that a server does not take has no limit of its own in the driver."""
_WRITING = ".writing-"
"""Began the name of a file that is not yet whole, in earlier releases."""
_REFUSED = (409, 412)
"""Conflict with a writer at the same time, and precondition failed; what is there is looked at then."""
_CLIENT = {"connect_timeout": 3, "read_timeout": 30, "retries": {"total_max_attempts": 1}}
"""Of an S3 client, in seconds. The driver tries again by itself, four times: what really bounds a call is its patience."""


def opened(url: str, *, patience_s: float = PATIENCE_S) -> ObjectStore:
    """Open what MS_CHECKPOINT_STORE names; the driver takes credentials and its endpoint from the environment.

    Args:
        url: of it.
        patience_s: as for `ObjectStore`.

    Raises:
        CheckpointWriteError: no driver for it is installed, or it is no URL.
    """
    if url.startswith(("s3://", "s3a://")):
        return ObjectStore(url, patience_s=patience_s, config_kwargs=_CLIENT)
    return ObjectStore(url, patience_s=patience_s)


class ObjectStore:
    """One URL such as `s3://bucket/prefix`. Keys are relative to it."""

    def __init__(
        self, url: str, *, patience_s: float = PATIENCE_S, moves_s: float = _MOVES_S, **options: Any
    ) -> None:
        """Prepare; nothing is asked of the storage.

        Args:
            url: a place that fsspec knows.
            patience_s: how long one question may take; only of drivers that can be interrupted, as those of networks can.
            moves_s: how long a part of a file may be on its way up.
            options: for its driver, such as an endpoint.

        Raises:
            CheckpointWriteError: no driver for it is installed, or it is no URL.
        """
        self.url, self._patience_s, self._moves_s = url.rstrip("/"), patience_s, moves_s
        try:
            core = importlib.import_module("fsspec.core")
            # An instance shared with others of this process, or a listing that is kept, would show the past.
            self._files, self._root = core.url_to_fs(
                self.url, skip_instance_cache=True, use_listings_cache=False, **options
            )
        except (ImportError, ValueError) as error:
            raise CheckpointWriteError(path=self.url, reason=str(error)) from error
        if self._files.async_impl:
            _let_work_at_exit(self._files.loop)
        protocols = self._files.protocol
        known = (protocols,) if isinstance(protocols, str) else tuple(protocols)
        self._has_directories, self._is_s3 = "file" in known, "s3" in known

    def create(self, key: str, content: bytes) -> bool:
        """Create a small object where none is.

        Returns:
            Whether the object now holds these bytes. False: another writer's were there first, and stay.

        Raises:
            CheckpointWriteError: it could not be created; whether it was is unknown, and the same call may be made again.
        """
        path = self._path(key)
        with _writing(self._named(key)):
            self._make_directory(path)
            try:
                self._create(path, content)
            except Exception as error:
                if not _is_refused(error):
                    raise
                # A driver repeats a request whose answer was lost: what it finds then may be its own object.
                return bool(self._ask("cat_file", path) == content)
        return True

    def creates_once(self) -> bool:
        """Does what was created first stay? Tried with an object that is removed again. Without it two ranks could commit a step each.

        Raises:
            CheckpointError: the storage cannot be written, or does not answer.
        """
        key = f"probe-{secrets.token_hex(16)}"
        first, second = self.create(key, b"first"), self.create(key, b"second")
        content = self.read(key, bytes_max=len(b"second"))
        self.remove(key)
        return (first, second, content) == (True, False, b"first")

    def put(self, key: str, source: Path) -> None:
        """Stream a file up, under a key that nobody else writes.

        Raises:
            CheckpointWriteError: it could not be written; a part of it may be there, which nothing names.
        """
        path = self._path(key)
        with _writing(self._named(key)):
            self._make_directory(path)
            if self._files.async_impl:
                self._send(source, path)
            else:
                self._files.put_file(str(source), path)

    def read(self, key: str, *, bytes_max: int) -> bytes | None:
        """Read a small object; None: there is none.

        Args:
            key: which.
            bytes_max: one byte more is read at most, so that the reader of it can refuse what is too large.

        Raises:
            CheckpointManifestError: the storage did not give it.
        """
        with _reading(self._named(key)):
            try:
                return bytes(self._ask("cat_file", self._path(key), start=0, end=bytes_max + 1))
            except FileNotFoundError:
                return None

    def pieces(self, key: str) -> Iterator[bytes]:
        """Read an object of any size, piece by piece.

        Raises:
            CheckpointManifestError: there is none, or the storage did not give all of it.
        """
        path = self._path(key)
        with _reading(self._named(key)):
            size = int(self._ask("info", path)["size"])
        for start in range(0, size, PIECE_BYTES):
            end = min(size, start + PIECE_BYTES)
            with _reading(self._named(key)):
                piece = bytes(self._ask("cat_file", path, start=start, end=end))
            yield piece

    def names(self, folder: str) -> tuple[str, ...]:
        """List what lies in a folder, as a hint where to look: sorted names without the folder.

        Raises:
            CheckpointManifestError: the storage did not answer.
        """
        with _reading(self._named(folder)):
            try:
                listed = self._ask("ls", self._path(folder), detail=False, refresh=True)
            except FileNotFoundError:
                return ()
        names = (str(path).rstrip("/").rpartition("/")[2] for path in listed)
        return tuple(
            sorted(
                name for name in names if not name.startswith(_WRITING) and not file_systems.is_draft(name)
            )
        )

    def remove(self, key: str) -> None:
        """Remove an object; that none is there is no error.

        Raises:
            CheckpointWriteError: it may still be there.
        """
        with _writing(self._named(key)), contextlib.suppress(FileNotFoundError):
            self._ask("rm_file", self._path(key))

    def remove_all(self, folder: str) -> None:
        """Remove what is listed below a folder.

        Raises:
            CheckpointWriteError: some of it may still be there.
        """
        with _writing(self._named(folder)), contextlib.suppress(FileNotFoundError):
            for path in self._ask("find", self._path(folder)):
                with contextlib.suppress(FileNotFoundError):
                    self._ask("rm_file", path)

    def _ask(self, what: str, *args: Any, **options: Any) -> Any:
        """Call the driver, for as long as patience lasts."""
        if self._files.async_impl:
            options["timeout"] = self._patience_s
        return getattr(self._files, what)(*args, **options)

    def _send(self, source: Path, path: str) -> None:
        """Put a file for as long as it moves, however large it is."""
        options: dict[str, Any] = {}
        if self._is_s3:
            part_bytes = max(PART_BYTES, math.ceil(source.stat().st_size / _PARTS_MAX))
            options = {"chunksize": part_bytes, "max_concurrency": _PARTS_AT_ONCE}
        moved = importlib.import_module("fsspec.callbacks").Callback()
        # The driver's coroutine, named so by fsspec: its blocking call has one limit for the whole file.
        putting = self._files._put_file(  # noqa: SLF001 - what fsspec documents for asynchronous drivers
            str(source), path, callback=moved, **options
        )
        future = asyncio.run_coroutine_threadsafe(putting, self._files.loop)
        seen = -1
        while not future.done():
            if moved.value == seen:
                future.cancel()
                reason = f"nothing moved for {self._moves_s:g} s, {seen} bytes are there"
                raise TimeoutError(reason)
            seen = moved.value
            concurrent.futures.wait((future,), self._moves_s)
        future.result()

    def _create(self, path: str, content: bytes) -> None:
        if not self._has_directories:
            self._ask("pipe_file", path, content, mode="create")
            return
        # The driver's own way of creating looks first and then writes, so that two writers could both win. Where there are no links the object is
        # not whole for a moment: who reads it then refuses it, and looks again later.
        file_systems.write_new(Path(path), content)

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"

    def _named(self, key: str) -> str:
        return f"{self.url}/{key}"

    def _make_directory(self, path: str) -> None:
        if self._has_directories:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)


def _let_work_at_exit(loop: asyncio.AbstractEventLoop) -> None:
    """Let a driver look names up and make clients behind the script's end, where the last checkpoint may still be under way.

    The loop is fsspec's, of the whole process: it runs in a thread of its own, and makes an executor that Python shuts down before.
    """
    loop.call_soon_threadsafe(loop.set_default_executor, Calls(_CALLS_AT_ONCE, "recovery-objects"))


def _is_refused(error: Exception) -> bool:
    """Is an object there, or just being made? What a server says of the condition in its answer's body differs; the code of HTTP does not."""
    answer = getattr(error.__cause__, "response", None) or {}
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return isinstance(error, FileExistsError) or status in _REFUSED


@contextlib.contextmanager
def _named_as(kind: type[CheckpointError], where: str) -> Iterator[None]:
    try:
        yield
    # Each driver raises what its own client raises.
    except Exception as error:
        raise kind(
            path=where, reason=f"{type(error).__name__}: {str(error) or 'no answer in time'}"
        ) from error


_writing = partial(_named_as, CheckpointWriteError)
_reading = partial(_named_as, CheckpointManifestError)
