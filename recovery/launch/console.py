"""What a launcher writes for people: lines on its console, and the processes' logs, appended and never truncated."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.text import Text
from typing_extensions import override

from recovery import clock, owner_files
from recovery.log import send_nowhere

MARK = "==="
"""Begins and ends the line that a launcher puts before each start in a process's log."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


class _Console(Console):
    """Ends nothing when nobody reads it any more (`recovery msrun ... | head`), where Rich's own would end the program."""

    @override
    def on_broken_pipe(self) -> None:
        # What Python still holds of it would make the interpreter's exit a failure.
        send_nowhere(sys.stdout)
        self.quiet = True
        self._buffer.clear()
        say("nobody reads this launcher's output any more; the processes' logs go on", style="yellow")


console = _Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
"""Colour on a terminal only, and none where NO_COLOR is set: Rich's own rules."""


def say(text: str, *, style: str = "") -> None:
    """One line for a person who watches. A console that cannot be written (closed, full) ends nothing: stderr may still be read."""
    try:
        if not console.quiet:
            console.print(Text(text, style=style))
            return
    except OSError:
        pass
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


def show_line(label: str, line: str, *, number: int) -> None:
    """A line of a process's log behind its label, in the colour of its number."""
    # What cannot be shown is in the log itself.
    with contextlib.suppress(OSError):
        console.print(Text.assemble((f"[{label}] ", _COLOURS[number % len(_COLOURS)]), line))


def open_log(path: Path, *, start: int) -> BinaryIO:
    """Open a process's log at its end, behind a line that says which start follows. Tracebacks in it may hold anything: it is its owner's.

    Raises:
        OSError: it cannot be opened, or takes no line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A process that was killed may have left half a line.
    begun = "" if _ends_with_a_line(path) else "\n"
    log = owner_files.at_its_end(path)
    mark = f"{begun}{MARK} {path.stem} start {start} {now()} {MARK}\n".encode()
    try:
        written = log.write(mark)
    except OSError:
        log.close()
        raise
    if written < len(mark):
        log.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return log


def _ends_with_a_line(path: Path) -> bool:
    """False also where that cannot be known: an empty line does no harm."""
    try:
        with path.open("rb") as log:
            if not log.seek(0, os.SEEK_END):
                return True
            log.seek(-1, os.SEEK_END)
            return log.read(1) == b"\n"
    except FileNotFoundError:
        return True
    except OSError:
        return False


def now() -> str:
    """ISO 8601, UTC, milliseconds."""
    return datetime.fromtimestamp(clock.wall_ms() / 1000, timezone.utc).isoformat(timespec="milliseconds")
