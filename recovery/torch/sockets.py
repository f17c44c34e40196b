"""The sockets of a world, how to end them under a thread that waits on them, and how patient this process is with its name server.

gloo wakes nobody whose own peer is alive, and aborting a group does not wake a gloo collective (torch 2.13: it returns at once, the
waiter stays). Ending what the connected sockets read does: the collective fails within a millisecond with an ordinary error. What they send
still goes out, and their peers do not notice: a send that fails is forgotten by gloo (process_group.py, fact 6).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import ipaddress
import os
import select
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

from recovery.errors import UsageError

_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def check_epoll() -> None:
    """See that this process may wait for sockets as torch's store and gloo do. Without it each generation would break as it begins.

    Raises:
        UsageError: its sandbox refuses that.
    """
    try:
        select.epoll().close()
    except OSError as error:
        if error.errno in _REFUSED:
            raise UsageError(
                field="epoll_create1",
                reason=f"is refused here ({error.strerror}), and neither torch's store nor gloo meets other ranks without it",
                next_step="Have the sandbox of this process (a container's seccomp profile) allow it.",
            ) from error


def open_sockets() -> dict[int, int]:
    """Descriptor to inode of every socket of this process. An inode is never a recycled number, unlike a descriptor."""
    found: dict[int, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                found[int(entry.name)] = int(target[8:-1])
    return found


def sockets_of_python() -> frozenset[int]:
    """Inodes of the sockets that Python objects hold: those of the script's own threads, of its loader, of ours. A world has none of them.

    Objects that `gc.freeze` has set apart are not looked at: a session begins behind it.

    Cost: one look at each object that Python's collector knows, some 20 ms for a million.
    """
    found: set[int] = set()
    for found_object in gc.get_objects():
        # Not isinstance: a proxy object may run code of its own then.
        if issubclass(type(found_object), socket.socket):
            with contextlib.suppress(OSError):
                found.add(os.fstat(found_object.fileno()).st_ino)
    return frozenset(found)


def descriptors_of(inodes: Iterable[int]) -> list[int]:
    """The descriptors that still refer to one of the inodes."""
    wanted = set(inodes)
    return [descriptor for descriptor, inode in open_sockets().items() if inode in wanted]


class EndedSockets:
    """Sockets that read their end here. Towards their peers they stay open, no matter which side closes them, until `let_go`."""

    def __init__(self) -> None:
        """None yet."""
        self._held: dict[int, socket.socket] = {}
        """By inode."""

    def end(self, inodes: Iterable[int]) -> int:
        """Let every connected TCP socket among them read its end; a listening one is left alone (shutting it down aborts the process).

        Returns:
            How many were ended now.
        """
        before = len(self._held)
        wanted = frozenset(inodes).difference(self._held)
        for descriptor in descriptors_of(wanted):
            self._end_one(descriptor, wanted)
        return len(self._held) - before

    def _end_one(self, descriptor: int, inodes: frozenset[int]) -> None:
        """End what the descriptor refers to now, if it is still one of the inodes and connected."""
        try:
            # The duplicate holds the socket, so that the number cannot become another file's.
            duplicate = os.dup(descriptor)
        except OSError:
            # Without another descriptor it is ended all the same.
            self._end_unheld(descriptor, inodes)
            return
        try:
            inode = os.fstat(duplicate).st_ino
            opened = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            return
        if inode in self._held or inode not in inodes or not _end_reading(opened):
            opened.close()
            return
        self._held[inode] = opened

    def _end_unheld(self, descriptor: int, inodes: frozenset[int]) -> None:
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino in inodes:
                opened = socket.socket(fileno=descriptor)
                try:
                    _end_reading(opened)
                finally:
                    opened.detach()

    def let_go(self) -> None:
        """Close them. Their peers have left what they did with them."""
        while self._held:
            self._held.popitem()[1].close()


def _end_reading(opened: socket.socket) -> bool:
    """Let it read its end; False: it is no connection."""
    # Another kind is a thread's pipe to itself.
    if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.type != socket.SOCK_STREAM:
        return False
    try:
        # Raises for a socket that is not connected.
        opened.getpeername()
        opened.shutdown(socket.SHUT_RD)
    except OSError:
        return False
    return True


def use_interface_of(host: str) -> None:
    """Let gloo use the interface that reaches the scheduler: its own guess resolves the host name, which often fails."""
    if "GLOO_SOCKET_IFNAME" in os.environ:  # noqa: TID251 - gloo reads it there only
        return
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.address.partition("%")[0] == str(wanted):
                os.environ["GLOO_SOCKET_IFNAME"] = name  # noqa: TID251 - see above
                return


def ask_again_soon() -> None:
    """Ask a silent name server again after 1 s, five times, instead of after 5 s, twice: a slow one still answers.

    c10d asks for the name of every address that it might log, and asks for 127.0.0.1 as ::ffff:127.0.0.1, which /etc/hosts does not
    answer: so every rank of a world costs some questions, and each lost datagram the resolver's whole timeout, 5 s. glibc reads this
    once, before its first question; a user's own RES_OPTIONS stay.
    """
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")  # noqa: TID251 - the resolver reads it there only
