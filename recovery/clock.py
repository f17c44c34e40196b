"""The two clocks. This is the only file that reads one; everything else is given the time.

`monotonic_ms` decides (leases, windows, deadlines) and means nothing in another process or after a restart of the machine.
`boot_ms` measures how long a process was away: it goes on from one process to the next, as long as `boot_id` is the same.
`wall_ms` is shown to people and never compared: it may jump either way.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path

_NS_PER_MS = 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary instant. Never goes back, whatever happens to the wall clock."""
    return time.monotonic_ns() // _NS_PER_MS


def monotonic_us() -> int:
    """The same in microseconds, for what is shorter than a step."""
    return time.monotonic_ns() // 1_000


def boot_ms() -> int:
    """Milliseconds since this machine was started, its sleep included. Goes on from one process to the next, never back."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS


def boot_id() -> str:
    """Which start of which machine `boot_ms` counts from; empty: unknown.

    The time namespace is part of it: a container may count from another instant.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}/{Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return ""


def wall_ms() -> int:
    """Milliseconds since 1970-01-01 UTC, for people."""
    return time.time_ns() // _NS_PER_MS


def instant(wall: int) -> str:
    """A time of `wall_ms` for people and programs: ISO 8601, UTC, milliseconds."""
    moment = datetime.datetime.fromtimestamp(wall / 1_000, tz=datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def utc_now() -> datetime.datetime:
    """The wall clock as a date with its time zone: what certificates are compared with."""
    return datetime.datetime.fromtimestamp(wall_ms() / 1_000, tz=datetime.timezone.utc)
