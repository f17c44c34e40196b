"""Does a program's output end as that of one which lost a peer? Then the peer's end may be the cause of its own, and come later.

A failing program closes its connections while it still tears itself down, so a peer that waits for it can have ended long before.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

from recovery.frameworks import FRAMEWORKS

_TAIL_BYTES = 16 * 1024
_LAST_LINES = 30
_LOST_PEER = re.compile(
    b"|".join(
        (
            # Of Python's own sockets, and of the system.
            rb"\bConnection(Reset|Aborted|Refused)?Error\b",
            rb"\bBrokenPipeError\b",
            rb"\bEOFError\b",
            rb"broken pipe",
            rb"connection (was )?(likely )?(closed|reset|lost|refused|aborted)",
            *(pattern for framework in FRAMEWORKS for pattern in framework.lost_peer),
        )
    ),
    re.IGNORECASE,
)


def written(descriptor: int) -> int:
    """Give how much a log holds, in bytes; 0: it is no file, so it cannot be read again."""
    found = os.fstat(descriptor)
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def names_lost_peer(descriptor: int, since: int) -> bool:
    """Do the last lines of a log name a lost peer? False where it cannot be read.

    Args:
        descriptor: to which it is written.
        since: where what is looked at begins, in bytes.
    """
    tail = b""
    with contextlib.suppress(OSError):
        end = written(descriptor)
        log = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            begin = max(since, end - _TAIL_BYTES)
            tail = os.pread(log, max(0, end - begin), begin)
        finally:
            os.close(log)
    return _LOST_PEER.search(b"\n".join(tail.splitlines()[-_LAST_LINES:])) is not None
