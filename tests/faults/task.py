"""What is interrupted at every system call: a row of the tables in tasks.py, standby_tasks.py and checkpoint_tasks.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Acknowledge = Callable[[], None]
"""Called behind each write that was acknowledged."""


class Task(NamedTuple):
    """One row of the table."""

    name: str
    prepare: Callable[[Path], object]
    """Makes what is there before, and returns what the child goes on with."""
    work: Callable[[Path, object, Acknowledge], None]
    look: Callable[[Path], object]
    """What a next process finds, compared by value with what it found after each write of an undisturbed child."""
