"""The last lines of a run that failed: which tests, and how busy the machine is, so that a failure under load is seen as one.

`python -m tests.load` prints them; `--begin` forgets the failures of an earlier run; `--behind COMMAND ...` runs a command, hands it what asks this
process to end (a shell in between would end alone and leave the tests running), and prints them where it fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_FAILED = Path(__file__).resolve().parents[1] / ".cache" / "failed"
"""Runs beside each other fail in their own time; each adds its tests here."""
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


def keep_failed(tests: Sequence[str]) -> None:
    """Keep the names of tests that failed, for the last lines of all runs together."""
    _FAILED.parent.mkdir(exist_ok=True)
    with _FAILED.open("a") as file:
        file.writelines(f"{test}\n" for test in tests)


def failed() -> list[str]:
    """What has failed since `--begin`."""
    return _FAILED.read_text().splitlines() if _FAILED.exists() else []


def run_behind(command: Sequence[str]) -> int:
    """Run a command; gives its exit code as a shell does."""
    # A make's children need the descriptors of its job server.
    child = subprocess.Popen(command, close_fds=False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: child.send_signal(received))
    try:
        code = child.wait()
    except KeyboardInterrupt:
        # The terminal has told the child too.
        code = child.wait()
    if code:
        _print()
    return code if code >= 0 else 128 - code


def _print() -> None:
    print("\n".join([*(f"failed: {test}" for test in failed()), *lines(Ticks(0, 0))]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--behind"]:
        sys.exit(run_behind(sys.argv[2:]))
    if "--begin" in sys.argv:
        _FAILED.unlink(missing_ok=True)
    else:
        _print()
