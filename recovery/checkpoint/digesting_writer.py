"""A stream that writes to a descriptor and digests what it writes, so that no byte is read twice."""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_GATHERED_BYTES = 65_536
"""Smaller pieces are written together: one system call for hundreds of them."""


class DigestingWriter(io.RawIOBase):
    """A stream that only grows, digested while it is written, so that no bit is read twice.

    Small pieces are gathered (a framework writes hundreds of a few bytes) until `drain`; after a failure nothing more is written.
    Closing it leaves the descriptor to its owner.
    """

    def __init__(self, descriptor: int) -> None:
        """Write to `descriptor`, which stays its opener's."""
        super().__init__()
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self._gathered = bytearray()
        self.size = 0
        """Bytes taken."""
        self.failure: OSError | None = None
        """The first failed write. torch.save turns it into a RuntimeError about positions, so it is kept here."""

    @override
    def writable(self) -> bool:
        """True."""
        return True

    @override
    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of `data`.

        Raises:
            OSError: this or an earlier piece could not be written whole. Nothing is tried again.
        """
        if self.failure is not None:
            raise self.failure
        taken = memoryview(data).cast("B")
        self._hash.update(taken)
        self.size += len(taken)
        if len(self._gathered) + len(taken) < _GATHERED_BYTES:
            self._gathered += taken
        else:
            self.drain()
            self._write_out(taken)
        return len(taken)

    def drain(self) -> None:
        """Write what was gathered.

        Raises:
            OSError: it could not be written whole.
        """
        gathered, self._gathered = self._gathered, bytearray()
        self._write_out(memoryview(gathered))

    def _write_out(self, rest: memoryview) -> None:
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self.failure = error
            raise

    def digest(self) -> str:
        """SHA-256 of what was taken so far, hex."""
        return self._hash.hexdigest()
