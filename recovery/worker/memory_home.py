"""This process's hold on its job's directory in memory: for its own checkpoints there, and for the copies of other ranks'."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path

from recovery.checkpoint.memory_tier import MemoryHome
from recovery.worker.exec_in_place import close_in_children

_homes: dict[tuple[Path, str], MemoryHome] = {}
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
        home = _homes[base, job] = MemoryHome(base, job, recovery_path)
        close_in_children(home.descriptors)
        atexit.register(_leave, home, job_is_over, os.getpid())
    return _homes[base, job]


def _leave(home: MemoryHome, job_is_over: Callable[[], bool], pid: int) -> None:
    """This process ends. A child that was forked has the handler, and no part in the job."""
    if os.getpid() == pid:
        home.leave(job_is_over=job_is_over())
