"""Descriptors that must not outlive this process in a child or in the program that replaces it.

A forked child (a DataLoader's worker) inherits every socket. While it holds one, the kernel does not close the connection of a
killed parent, and peers keep waiting. So the child closes what is registered here, first thing after the fork.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterable

_STDERR = 2
_PASSES_MAX = 3
"""The threads of a framework may open one more while the others are marked; they do not open any three times in a millisecond."""

_owners: list[Callable[[], Iterable[int]]] = []


def close_in_children(owner: Callable[[], Iterable[int]]) -> None:
    """Register descriptors that forked children must close.

    Args:
        owner: gives the descriptors as they are at the moment of the fork.
    """
    if not _owners:
        os.register_at_fork(after_in_child=_close_in_child)
    _owners.append(owner)


def _close_in_child() -> None:
    for owner in _owners:
        for descriptor in owner():
            with contextlib.suppress(OSError):
                os.close(descriptor)
    _owners.clear()


def close_all_at_exec() -> None:
    """Let exec close everything except stdin, stdout and stderr: a leaked socket keeps peers waiting.

    Closing them here would end the process instead: gloo's threads still live, and one whose epoll descriptor is gone aborts.
    The kernel ends all other threads before it closes a descriptor.
    """
    for _ in range(_PASSES_MAX):
        inheritable = [descriptor for descriptor in _open_descriptors() if _is_inheritable(descriptor)]
        for descriptor in inheritable:
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)
        if not inheritable:
            return


def _open_descriptors() -> Iterable[int]:
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are numbers here
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return range(3, soft)
    return [int(name) for name in names if int(name) > _STDERR]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False
