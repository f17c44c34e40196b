"""This process's hold on its job's directory in memory: for its own checkpoints there, and for the copies of other ranks'."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from recovery.checkpoint.memory_tier import MemoryHome
from recovery.worker.exec_in_place import close_in_children


class _Held(NamedTuple):
    home: MemoryHome
    job_is_over: Callable[[], bool]
    pid: int
    """The process that holds it. A child that was forked has the handler, and no part in the job."""


_homes: dict[tuple[Path, str], _Held] = {}
"""Held until this process ends, by base and job: between two generations the directory is in use."""


def hold(base: Path, job: str, recovery_path: Path, job_is_over: Callable[[], bool]) -> MemoryHome:
    """Hold the directory, made if absent, until this process ends.

    Args:
        base: the tmpfs.
        job: whose.
        recovery_path: of the job.
        job_is_over: asked at the end of the process: what the job has left there goes with it.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    if (base, job) not in _homes:
        home = MemoryHome(base, job, recovery_path)
        _homes[base, job] = _Held(home, job_is_over, os.getpid())
        close_in_children(home.descriptors)
    return _homes[base, job].home


def leave_all() -> None:
    """Let go of everything; what a job has left that is over is removed."""
    while _homes:
        _, held = _homes.popitem()
        if os.getpid() == held.pid:
            held.home.leave(job_is_over=held.job_is_over())


# Handlers run in the reverse order of their registration: this one, behind those of all that may still write there.
atexit.register(leave_all)
