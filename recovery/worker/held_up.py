"""What the kernel says has kept this process from its work: for a rank that is slow, it is the reason.

Linux: Documentation/admin-guide/cgroup-v2.rst (cpu.stat), Documentation/filesystems/proc.rst (stat, status).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from recovery import clock
from recovery.core.pace import HeldUp
from recovery.worker import processor_wait

CONTROL_GROUPS, PROCESSES = Path("/sys/fs/cgroup"), Path("/proc")
_OVER_MS = 10_000
"""What is told is of so long at least, and of twice that at most."""


class _Counters(NamedTuple):
    """Since the process, the group or the machine began."""

    now_ms: int
    starved_ms: int
    throttled_us: int
    stolen: int
    ticks: int
    """Of all processors, for whatever."""


class Watch:
    """Looks now and then, and tells what was between two looks."""

    def __init__(self) -> None:
        """It has not looked."""
        self._groups = _cpu_stats()
        self._newest: _Counters | None = None
        self._said: dict[HeldUp, int] = {}

    def look(self, main_thread: int) -> dict[HeldUp, int]:
        """In thousandths of the time, or of the memory; what is not is left out.

        Args:
            main_thread: as `threading.get_native_id` numbers it.
        """
        before, now_ms = self._newest, clock.monotonic_ms()
        if before is None or now_ms - before.now_ms >= _OVER_MS:
            stolen, ticks = _stolen()
            self._newest = now = _Counters(
                now_ms, processor_wait.waited_ms(main_thread), self._throttled_us(), stolen, ticks
            )
            if before is not None:
                self._said = _between(before, now)
        return self._said

    def _throttled_us(self) -> int:
        """The longest of its groups: what stops an outer one stops it as well."""
        return max((_figure(path, b"throttled_usec") for path in self._groups), default=0)


def _between(before: _Counters, now: _Counters) -> dict[HeldUp, int]:
    lasted_ms = max(1, now.now_ms - before.now_ms)
    found = {
        HeldUp.STARVED: (now.starved_ms - before.starved_ms) * 1_000 // lasted_ms,
        HeldUp.THROTTLED: (now.throttled_us - before.throttled_us) // lasted_ms,
        HeldUp.STOLEN: (now.stolen - before.stolen) * 1_000 // max(1, now.ticks - before.ticks),
        HeldUp.SWAPPED: _swapped(),
    }
    return {what: min(much, 1_000) for what, much in found.items() if much > 0}


def _cpu_stats() -> list[Path]:
    """Of the control group of this process, and of those around it."""
    try:
        lines = (PROCESSES / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    names = [line[3:].lstrip("/") for line in lines if line.startswith("0::")]
    # Seen from a container of its own its group is the root of the mount, and one beside it has a name with "..".
    own = CONTROL_GROUPS / names[0] if names and ".." not in names[0] else CONTROL_GROUPS
    groups = (group for group in (own, *own.parents) if group.is_relative_to(CONTROL_GROUPS))
    return [group / "cpu.stat" for group in groups]


def _figure(path: Path, name: bytes) -> int:
    """A counter of that name in a file of lines `name figure`; 0: it has none."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _stolen() -> tuple[int, int]:
    """Time that the host of a virtual machine has had its processors, and all time of these: in ticks."""
    try:
        figures = [int(one) for one in (PROCESSES / "stat").read_bytes().split(b"\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return (figures[7], sum(figures)) if len(figures) > 7 else (0, sum(figures))  # noqa: PLR2004 - the eighth is steal


def _swapped() -> int:
    """How much of this process's memory lies in swap, in thousandths."""
    path = PROCESSES / "self/status"
    swap, resident = _figure(path, b"VmSwap:"), _figure(path, b"VmRSS:")
    return swap * 1_000 // max(1, swap + resident)
