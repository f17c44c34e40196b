"""What a launcher writes: the processes' logs, appended and never truncated, an incident per failure, lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

import msgspec

from recovery import clock

_LAST_LINES = 30
_TAIL_BYTES = 64 * 1024
_MARK = "==="


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, kept as `incident-<n>.json`."""

    process: str
    start: int
    """Which start of the process it was, 1-based."""
    status: str
    """`exit code 1`, `killed by SIGKILL (out of memory?)`."""
    wall: str
    """When, ISO 8601, UTC."""
    consequence: str
    last_lines: tuple[str, ...]
    """The end of its log."""
    traceback: tuple[str, ...]
    """The last traceback in them; empty: there is none."""


def say(text: str) -> None:
    """One line for whoever watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def open_log(path: Path, *, start: int) -> BinaryIO:
    """Open a process's log at its end, behind a line that says which start follows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.open("ab", buffering=0)
    log.write(f"{_MARK} {path.stem} start {start} {now()} {_MARK}\n".encode())
    return log


def now() -> str:
    """ISO 8601, UTC, milliseconds."""
    return datetime.fromtimestamp(clock.wall_ms() / 1000, timezone.utc).isoformat(timespec="milliseconds")


def incident(path: Path, *, start: int, status: str, consequence: str) -> Incident:
    """Look at the end of a log."""
    lines = tuple(_tail(path))
    begun = max(
        (number for number, line in enumerate(lines) if line.startswith("Traceback (most recent")),
        default=None,
    )
    return Incident(
        process=path.stem,
        start=start,
        status=status,
        wall=now(),
        consequence=consequence,
        last_lines=lines,
        traceback=lines[begun:] if begun is not None else (),
    )


def keep(incident: Incident, directory: Path) -> Path:
    """Write it under the next free number."""
    number = 1 + sum(1 for _ in directory.glob("incident-*.json"))
    path = directory / f"incident-{number}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(incident)) + b"\n")
    return path


def _tail(path: Path) -> Iterator[str]:
    """The last lines since the process's start."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = log.read().decode(errors="replace")
    newest = text.rpartition(f"\n{_MARK} {path.stem} start ")[2]
    yield from newest.splitlines()[-_LAST_LINES:]
