"""The sockets of a world, and how to close them under whoever waits on them.

gloo wakes nobody whose own peer is alive, and aborting a group does not wake a gloo collective (torch 2.13: it returns at once, the
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
    """Shut down every connected TCP socket among them; a listening one is left alone (shutting it down aborts the process).

    Returns:
        How many were shut down.
    """
    wanted = frozenset(inodes)
    return sum(_shut_down_one(descriptor, wanted) for descriptor in descriptors_of(wanted))


def _shut_down_one(descriptor: int, inodes: frozenset[int]) -> bool:
    """Shut down what the descriptor refers to now, if it is still one of the inodes and connected."""
    try:
        # The duplicate holds the socket, so that the number cannot become another file's.
        duplicate = os.dup(descriptor)
    except OSError:
        return False
    try:
        if os.fstat(duplicate).st_ino not in inodes:
            return False
        opened = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return False
    with opened:
        # Another kind is a thread's pipe to itself.
        if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.type != socket.SOCK_STREAM:
            return False
        try:
            # Raises for a socket that is not connected.
            opened.getpeername()
            opened.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
