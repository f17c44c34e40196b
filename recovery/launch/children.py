"""How a child process begins and how it is ended, the same for the launcher and for a supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_BEGIN = str(Path(__file__).with_name("begin_child.py"))


def tied(command: Sequence[str], cpus: Sequence[int] = ()) -> list[str]:
    """The command behind a program that ties the child to this process and to its processors, then becomes the command.

    Args:
        command: what the child is to run.
        cpus: processors it may use; none: all.
    """
    where = ",".join(str(cpu) for cpu in cpus)
    return [sys.executable, "-I", "-S", _BEGIN, str(os.getpid()), where, *command]


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a child and everything it has started in its session; nothing when all of it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
