"""How many writes a file holds, and how many were acknowledged: SQLite takes a damaged frame of the -wal for its end.

The count stands in the file, within each transaction. Behind each commit it is noted beside the file as well, without a sync: the note
survives this process, and the machine half a minute later. It may lag behind the file and never runs ahead of it, so a file that
holds fewer writes than its note has lost some.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection

from recovery.errors import StoreError
from recovery.store.meta import meta_text, set_meta
from recovery.store.paths import companion

_NAME = "commits"
_NOTE_BYTES_MAX = 128


def first_value() -> str:
    """What a new file says: an identity of its own, so that no other file's note is taken for its own, and no writes."""
    return f"{os.urandom(8).hex()} 0"


class Commits:
    """The count of one open file."""

    def __init__(self, path: Path) -> None:
        """Read the note. A process that reads beside a writer does so before its transaction begins: the note never runs ahead."""
        self._path = path
        self._identity, self._count = "", 0
        self._noted = _read_note(path)

    def check(self, connection: Connection, *, accept_fewer: bool) -> None:
        """Read the count, in the transaction of `connection`.

        Args:
            connection: to the file, as it was found.
            accept_fewer: go on with a file that has lost writes.

        Raises:
            StoreError: the file holds fewer writes than were acknowledged; it does not say how many it holds.
        """
        found = meta_text(connection, _NAME, self._path)
        self._identity, self._count = _parsed(found or first_value(), self._path)
        identity, known = self._noted
        if identity == self._identity and known > self._count and not accept_fewer:
            raise StoreError("STORE_ROWS_MISSING", path=str(self._path), found=self._count, known=known)

    def add(self, connection: Connection) -> None:
        """One more write, in its own transaction."""
        set_meta(connection, _NAME, f"{self._identity} {self._count + 1}")

    def note(self) -> None:
        """The transaction is durable."""
        self._count += 1
        self.settle()

    def settle(self) -> None:
        """Note what the file holds. A note that cannot be written is no reason to refuse what is durable."""
        content = f"{self._identity} {self._count}"
        line = f"{content} {zlib.crc32(content.encode()):08x}\n".encode()
        with suppress(OSError):
            descriptor = os.open(
                companion(self._path, ".commits"),
                os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            try:
                os.pwrite(descriptor, line, 0)
            finally:
                os.close(descriptor)


def _read_note(path: Path) -> tuple[str, int]:
    """Identity and count; empty and 0 if nothing readable was noted."""
    try:
        descriptor = os.open(companion(path, ".commits"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            content, _, checksum = os.read(descriptor, _NOTE_BYTES_MAX).partition(b"\n")[0].rpartition(b" ")
        finally:
            os.close(descriptor)
    except OSError:
        return "", 0
    if checksum != f"{zlib.crc32(content):08x}".encode():
        return "", 0
    return _parsed(content.decode(), path)


def _parsed(value: str, path: Path) -> tuple[str, int]:
    identity, _, count = value.partition(" ")
    if not (identity and count.isascii() and count.isdigit()):
        raise StoreError("STORE_CORRUPT", path=str(path), reason="it does not say how many writes it holds")
    return identity, int(count)
