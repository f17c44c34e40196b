"""Files that only their owner reads, and that are written into no other place than that of their name; and what is written whole."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

_OWNER_ONLY = 0o600


def new_file(path: Path, mode: int = _OWNER_ONLY) -> BinaryIO:
    """Open a new, empty file. What has the name goes: the part of a process that was killed, a link that somebody has put there.

    Raises:
        OSError: it cannot be made.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


def write_over(path: Path, content: bytes, mode: int = _OWNER_ONLY) -> None:
    """Write a file in the place of what is there: a reader finds the one or the other, whole.

    Args:
        path: of the file; its draft has the same name with `.part` behind it.
        content: all of it.
        mode: who may read it, without what the umask forbids.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with new_file(part, mode) as file:
            file.write(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def at_its_end(path: Path) -> BinaryIO:
    """Open a file to write at its end, unbuffered; one that is there keeps its mode. Nobody waits for the reader of a named pipe.

    Raises:
        OSError: it cannot be opened; ENXIO: nobody reads the pipe that has its name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, _OWNER_ONLY)
    # A program that inherits it expects to wait for its reader.
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab", buffering=0)


def to_read(path: Path) -> BinaryIO:
    """Open a file to read, unbuffered. Nobody waits for the writer of a named pipe, which cannot be searched and raises where it is.

    Raises:
        OSError: it cannot be opened.
    """
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)


def append_whole(file: BinaryIO, content: bytes) -> None:
    """Write at the end of an unbuffered file that nobody else writes: all of it, or nothing. A full disk takes a part without an error.

    Raises:
        OSError: it is not written; the file ends where it did.
    """
    begin, rest = os.fstat(file.fileno()).st_size, memoryview(content)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(begin)
            file.seek(begin)
        raise
