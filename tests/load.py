"""How busy the machine is: the last lines of a run that failed, so that a failure under load is seen as one."""

from __future__ import annotations

import os
from pathlib import Path

_PRESSURE = Path("/proc/pressure")
_STAT = Path("/proc/stat")
_STEAL = 7
"""The column of /proc/stat (proc(5)): ticks that another guest of the same machine had."""


class Ticks:
    """What the processors have done since the machine started."""

    def __init__(self, total: int, stolen: int) -> None:
        self.total, self.stolen = total, stolen

    @classmethod
    def now(cls) -> Ticks:
        """Read them."""
        words = _STAT.read_text().splitlines()[0].split()[1:9] if _STAT.exists() else ["0"] * 8
        ticks = [int(word) for word in words]
        return cls(sum(ticks), ticks[_STEAL])


def lines(since: Ticks) -> list[str]:
    """The load of this moment, and what was stolen since then."""
    now = Ticks.now()
    steal = 100 * (now.stolen - since.stolen) / max(1, now.total - since.total)
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    pressures = [path for kind in ("cpu", "io", "memory") if (path := _PRESSURE / kind).exists()]
    return [
        f"load {loads} on {os.cpu_count()} processors, steal {steal:.1f} %",
        *(f"pressure of {path.name}: {path.read_text().splitlines()[0]}" for path in pressures),
    ]


if __name__ == "__main__":
    print("\n".join(lines(Ticks(0, 0))))
