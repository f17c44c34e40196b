"""On what a checkpoint lies: a disk that outlasts its host's end, or the host's memory, which outlasts only the process.

The path says it, so neither messages nor stored rows need a field for it, and it is never said wrongly of a file that was moved.
"""

from __future__ import annotations

from enum import Enum

MEMORY_DIRECTORY_PREFIX = "recovery-memory-"
"""Begins the name of each directory of the memory tier (`recovery/checkpoint/memory_tier.py` makes them)."""

_BEFORE_FILE = 3
"""A file of the memory tier has this directory, one directory for each rank in it, and a name of its own."""


class Tier(str, Enum):
    """On what a checkpoint lies."""

    DISK = "disk"
    """Durable: it was synced."""
    MEMORY = "memory"
    """On tmpfs: it is there when its process has died, and gone with its host."""

    @property
    def is_durable(self) -> bool:
        """Is what lies there still there when its host has lost power?"""
        return self is not Tier.MEMORY


def tier_of(path: str) -> Tier:
    """Say on what a checkpoint lies, by the path of its first file as it is reported."""
    parts = path.rsplit("/", _BEFORE_FILE)
    in_memory = len(parts) > _BEFORE_FILE - 1 and parts[-_BEFORE_FILE].startswith(MEMORY_DIRECTORY_PREFIX)
    return Tier.MEMORY if in_memory else Tier.DISK
