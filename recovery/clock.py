"""The two clocks. This is the only file that reads one; everything else is told the time.

`monotonic_ms` decides (leases, windows, deadlines) and means nothing in another process or after a restart of the machine.
`wall_ms` is shown to people and never compared: it may jump either way.
"""

from __future__ import annotations

import time

_NS_PER_MS = 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary instant. Never goes back, whatever happens to the wall clock."""
    return time.monotonic_ns() // _NS_PER_MS


def wall_ms() -> int:
    """Milliseconds since 1970-01-01 UTC, for people."""
    return time.time_ns() // _NS_PER_MS
