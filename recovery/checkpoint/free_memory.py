"""How much memory may still be taken: of this host, and of each control group that this process is in.

What the kernel holds of files counts as free, since it drops that first; what lies on tmpfs does not.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def free_bytes() -> int:
    """What may be taken before the host's memory, or that of a control group, is full; 0: nobody can say."""
    return max(0, min((free for free in (_available(), free_of_groups()) if free is not None), default=0))


def free_of_groups(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """What the narrowest limit leaves; None: there is none, or nobody can say.

    `root` is where the groups are mounted (version 2), `own` says which is this process's. Its parents' limits hold as well: schedulers of
    clusters set them there.
    """
    try:
        group = root / own.read_text(encoding="utf-8").rpartition("::/")[2].strip()
    except (OSError, ValueError):
        return None
    places = [place for place in (group, *group.parents) if place.is_relative_to(root)]
    return min((left for left in map(_left, places) if left is not None), default=None)


def _left(place: Path) -> int | None:
    try:
        limit = (place / "memory.max").read_text(encoding="utf-8").strip()
        if limit == "max":
            return None
        used = int((place / "memory.current").read_text(encoding="utf-8"))
        counts = dict(
            line.split() for line in (place / "memory.stat").read_text(encoding="utf-8").splitlines()
        )
        return int(limit) - used + int(counts["file"]) - int(counts["shmem"])
    except (OSError, ValueError, KeyError):
        return None


def _available() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
