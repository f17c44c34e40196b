"""How slow this machine is right now: limits in seconds are for a calm one, and a virtual machine's neighbours can take half of it."""

from __future__ import annotations

import subprocess
import sys
import time

_CALM_S = 0.08
"""What the program below takes on two calm cores."""
_TRIES = 5


def slowness() -> float:
    """How many times longer than on a calm machine a small program takes at the moment; at least 1."""
    times = []
    for _ in range(_TRIES):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import argparse, asyncio, json, sqlite3"], check=True)
        times.append(time.monotonic() - begun)
    return max(1.0, min(times) / _CALM_S)
