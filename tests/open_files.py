"""What this process holds open, so that a test can tell what it has left behind itself."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path


def open_files() -> Counter[str]:
    """What descriptors lead to, but for sockets, pipes and the like: other tests' threads may open and close those at any time."""
    found = Counter[str]()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("/") and not name.startswith("/proc/"):
                found[name] += 1
    return found
