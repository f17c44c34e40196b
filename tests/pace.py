"""How slow this machine is right now: limits in seconds are for a calm one, and a virtual machine's neighbours can take most of it."""

from __future__ import annotations

import subprocess
import sys
import time

_CALM_S = 0.08
"""What the program below takes on two calm cores."""

_TRIES = 5

_PATIENCE = 3
"""A wait is no measurement: it may take this much longer than the pace explains before it counts as hanging."""


def slowness() -> float:
    """How many times longer than on a calm machine a small program takes at the moment; at least 1."""
    times = []
    for _ in range(_TRIES):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import argparse, asyncio, json, sqlite3"], check=True)
        times.append(time.monotonic() - begun)
    return max(1.0, min(times) / _CALM_S)


def within(took: float, limit: float) -> bool:
    """True when `took` keeps a limit meant for a calm machine (in the same unit); its pace is asked only when it matters."""
    return took < limit or took < limit * slowness()


class Patience:
    """The end of a wait that a test gives up after, in seconds of a calm machine.

    Args:
        calm_s: what it may take at most on a calm machine.
    """

    def __init__(self, calm_s: float) -> None:
        self._calm_s = calm_s
        self._begun_s = time.monotonic()

    def ended(self) -> bool:
        """True when what is waited for will hardly come any more."""
        return not within(time.monotonic() - self._begun_s, _PATIENCE * self._calm_s)
