"""How a child process begins and how it is ended, the same for the launcher and for a supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)


def begin_child() -> None:
    """In the child, before the program: the kernel kills it when its parent dies, however that dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == int(sys.argv[1]) or sys.exit(); os.execvp(sys.argv[2], sys.argv[2:])"


def tied(command: Sequence[str]) -> list[str]:
    """The command behind a word that does what `begin_child` does: for parents with threads, where nothing may run between fork and exec."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a child and everything it has started in its session; nothing when all of it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
