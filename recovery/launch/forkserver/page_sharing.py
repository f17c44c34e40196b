"""The memory that a template shares with its forks: joined into large pages, and copied ahead where another fork has written.

A fork copies the tables of all pages, a process that ends gives each page back, and each page that a fork writes first costs a fault and
a copy. Measured with torch 2.13: a worker that took a lost rank had written 12,000 pages by its first step, half of its processor time.
Nothing here changes what a process sees; where the kernel is too old, or refuses, everything takes the time that it took before.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
"""Of linux/mman.h: since Linux 5.14 and 6.1."""
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_PAGE_BYTES = mmap.PAGESIZE
_LARGE_BYTES = 2 << 20
_ENTRY_BYTES = 8
_PRESENT, _OF_A_FILE, _ITS_OWN = 1 << 63, 1 << 61, 1 << 56
"""Of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). Its own: no other process has the page."""
_LOOKED_AT, _COPIED = _PRESENT | _OF_A_FILE | _ITS_OWN, _PRESENT | _ITS_OWN


class Span(NamedTuple):
    """Addresses, the second one excluded."""

    begin: int
    end: int


def join_pages() -> None:
    """Let the kernel join this process's memory into large pages where it can: a fork takes a third of the time, and the end of a fork half."""
    for begin, end in _writable():
        first, last = -(-begin // _LARGE_BYTES) * _LARGE_BYTES, end // _LARGE_BYTES * _LARGE_BYTES
        if first < last:
            _advise(Span(first, last), _MADV_COLLAPSE)


def copy_as(pid: int, is_wanted: Callable[[], bool]) -> int:
    """Copy those pages of this process that another fork of the same template has copied by now: it will write them as that one did.

    Args:
        pid: of the other one.
        is_wanted: is this process asked for? Then it goes on with what is copied by then.

    Returns:
        How many pages that are; 0: the other one has ended, or nobody may look.
    """
    count = 0
    for span in _copied_by(pid):
        if is_wanted():
            break
        _advise(span, _MADV_POPULATE_WRITE)
        count += (span.end - span.begin) // _PAGE_BYTES
    return count


def _copied_by(pid: int) -> Iterator[Span]:
    """Of what is this process's own memory too."""
    try:
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pages:
            for span in _writable():
                yield from _copied_in(pages.fileno(), span)
    except OSError:
        return


def _copied_in(pages: int, span: Span) -> Iterator[Span]:
    entries = array.array("Q")
    read = os.pread(
        pages,
        (span.end - span.begin) // _PAGE_BYTES * _ENTRY_BYTES,
        span.begin // _PAGE_BYTES * _ENTRY_BYTES,
    )
    entries.frombytes(read[: len(read) // _ENTRY_BYTES * _ENTRY_BYTES])
    begin = None
    for number, entry in enumerate((*entries, 0)):
        if entry & _LOOKED_AT == _COPIED:
            begin = number if begin is None else begin
        elif begin is not None:
            yield Span(span.begin + begin * _PAGE_BYTES, span.begin + number * _PAGE_BYTES)
            begin = None


def _writable() -> Sequence[Span]:
    """This process's memory that no file and no other process has part in."""
    spans = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, permissions = line.split(maxsplit=2)[:2]
        if permissions == "rw-p":
            begin, _, end = addresses.partition("-")
            spans.append(Span(int(begin, 16), int(end, 16)))
    return spans


def _advise(span: Span, advice: int) -> None:
    """What the kernel answers is not looked at: it does what it can."""
    _madvise(span.begin, span.end - span.begin, advice)
