"""A program of its own, between a child's fork and its program: `python -I -S begin_child.py PARENT CPUS COMMAND ...`.

What a child must do before its program begins cannot be done between fork and exec by a parent with threads: a lock that one of
them holds at the fork is held for ever in the child. So this small program does it, and becomes the child's program by exec.
It imports nothing of the engine: it costs an interpreter's start and no more.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""
_SIGKILL = 9
CANNOT_BE_STARTED = 71
"""The exit code of LAUNCH_FAILED (recovery/errors)."""


def _main(words: Sequence[str]) -> None:
    """Let the kernel kill this process when its parent dies, move to its processors, and become the command."""
    parent, cpus, *command = words
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    # The parent may have died before the kernel was asked.
    if os.getppid() != int(parent):
        return
    if cpus:
        os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(",")])
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command of the person who started the job
    except OSError as error:
        os.write(2, f"LAUNCH_FAILED: {command[0]} cannot be started ({error.strerror})\n".encode())
        os._exit(CANNOT_BE_STARTED)


if __name__ == "__main__":
    _main(sys.argv[1:])
