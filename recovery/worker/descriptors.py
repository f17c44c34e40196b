"""Descriptors that must not outlive this process in a child or in the program that replaces it.

A forked child (a DataLoader's worker) inherits every socket. While it holds one, the kernel does not close the connection of a
killed parent, and peers keep waiting. So the child closes what is registered here, first thing after the fork.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterable

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


def close_all_but_standard() -> None:
    """Close everything except stdin, stdout and stderr, right before exec: a leaked socket keeps peers waiting."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are numbers here
    except (OSError, ValueError):
        highest = soft
    os.closerange(3, highest + 1)
