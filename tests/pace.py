"""How a test waits: for what is to become true, and never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil

_PAUSE = threading.Event()
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1

HANG_S = 300.0
"""What takes longer does not come any more. It ends a test that hangs, and judges nothing: a calm machine needs a fraction of it."""


def wait_for(
    until: Callable[[], object], what: str, details: Callable[[], str] = lambda: "", *, hang_s: float = HANG_S
) -> None:
    """Wait for something to become true.

    Args:
        until: asked again and again, less often the longer it takes, so that the wait does not load the machine.
        what: a noun, for the error.
        details: everything that helps to find out why not.
        hang_s: what takes longer does not come any more.

    Raises:
        AssertionError: it did not become true within that.
    """
    deadline_s = time.monotonic() + hang_s
    pause_s = _FIRST_PAUSE_S
    while not until():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"no {what} within {hang_s:g} s\n{details()}")
        _PAUSE.wait(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 1.2 * pause_s)


def is_gone(pid: int) -> bool:
    """Has a process ended? Who is its parent may leave it as a zombie, or reap it at this very moment."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
