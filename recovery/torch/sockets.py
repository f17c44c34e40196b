"""The sockets of a world, and how to close them under whoever waits on them.

gloo wakes nobody whose own peer lives, and aborting a group does not wake a gloo collective (torch 2.13: it returns at once, the
waiter stays). Shutting down the connected sockets does: the collective fails within a millisecond with an ordinary error.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path


def open_sockets() -> dict[int, int]:
    """Descriptor to inode of every socket of this process. An inode is never a recycled number, unlike a descriptor."""
    found: dict[int, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                found[int(entry.name)] = int(target[8:-1])
    return found


def descriptors_of(inodes: Iterable[int]) -> list[int]:
    """The descriptors that still refer to one of the inodes."""
    wanted = set(inodes)
    return [descriptor for descriptor, inode in open_sockets().items() if inode in wanted]


def shut_down(inodes: Iterable[int]) -> int:
    """Shut down every connected socket among them; a listening one is left alone (shutting it down aborts the process).

    Returns:
        How many were shut down.
    """
    count = 0
    for descriptor in descriptors_of(inodes):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            duplicate.getpeername()  # raises for a socket that is not connected
            duplicate.shutdown(socket.SHUT_RDWR)
            count += 1
    return count
