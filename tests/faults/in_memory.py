"""Where files lie whose loss nobody needs to fear: what the kernel was given survives a kill without any disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_PLACE = Path("/dev/shm")
_FREE_BYTES = 256 << 20
"""Some containers have a quarter of that."""


def in_memory() -> Path | None:
    """A directory whose files are in memory, where fsync costs nothing; None where there is no room for one."""
    if not os.access(_PLACE, os.W_OK) or shutil.disk_usage(_PLACE).free < _FREE_BYTES:
        return None
    return _PLACE
