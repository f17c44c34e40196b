"""How slow this machine is right now: limits in seconds are for a calm one, and a virtual machine's neighbours can take most of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

_PAUSE = threading.Event()

_CALM_S = {
    "import argparse, asyncio, json, sqlite3": 0.08,
    "rows = [{'n': n, 's': str(n)} for n in range(300_000)]; sum(len(row['s']) for row in rows)": 0.1,
}
"""Programs, and what each takes on two calm cores: a start, and work on more memory than a cache holds.

The second has been seen to take twice as long while the first took what it always takes; the timeline of a large job did the same.
"""

_TRIES = 5

_PATIENCE = 3
"""A wait is no measurement: it may take this much longer than the pace explains before it counts as hanging."""


def _slowness() -> float:
    """How many times longer than on a calm machine a small program takes at the moment; at least 1."""
    return max(1.0, *(_shortest(program) / calm_s for program, calm_s in _CALM_S.items()))


def _shortest(program: str) -> float:
    times = []
    for _ in range(_TRIES):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", program], check=True)
        times.append(time.monotonic() - begun)
    return min(times)


def within(took: float, limit: float) -> bool:
    """True when `took` keeps a limit meant for a calm machine (in the same unit); its pace is asked only when it matters."""
    return took < limit or took < limit * _slowness()


def wait_for(
    until: Callable[[], object], what: str, calm_s: float, details: Callable[[], str] = lambda: ""
) -> None:
    """Wait for something to become true.

    Args:
        until: asked again and again.
        what: a noun, for the error.
        calm_s: what it may take at most on a calm machine.
        details: everything that helps to find out why not.

    Raises:
        AssertionError: it will hardly come any more.
    """
    begun_s = time.monotonic()
    while not until():
        if not within(time.monotonic() - begun_s, _PATIENCE * calm_s):
            raise AssertionError(f"no {what} within {calm_s:g} s\n{details()}")
        _PAUSE.wait(0.02)
