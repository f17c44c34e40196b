"""What a launcher writes for people: lines on its console, and the processes' logs, appended and never truncated."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.text import Text

from recovery import clock

MARK = "==="
"""Begins and ends the line that a launcher puts before each life in a process's log."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")

console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
"""Colour on a terminal only, and none where NO_COLOR is set: Rich's own rules."""


def say(text: str, *, style: str = "") -> None:
    """One line for whoever watches."""
    console.print(Text(text, style=style))


def show_line(label: str, line: str, *, number: int) -> None:
    """A line of a process's log behind its label, in the colour of its number."""
    console.print(Text.assemble((f"[{label}] ", _COLOURS[number % len(_COLOURS)]), line))


def open_log(path: Path, *, start: int) -> BinaryIO:
    """Open a process's log at its end, behind a line that says which start follows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.open("ab", buffering=0)
    log.write(f"{MARK} {path.stem} start {start} {now()} {MARK}\n".encode())
    return log


def now() -> str:
    """ISO 8601, UTC, milliseconds."""
    return datetime.fromtimestamp(clock.wall_ms() / 1000, timezone.utc).isoformat(timespec="milliseconds")
