"""What a launcher writes for people: lines on its console, and the processes' logs, appended and never truncated."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import select
import sys
import threading
from pathlib import Path
from typing import IO, BinaryIO, cast

from rich.console import Console
from rich.text import Text
from typing_extensions import override

from recovery import clock, owner_files, standard_streams
from recovery.errors import SettingError, UsageError

MARK = "==="
"""Begins and ends the line that a launcher puts before each start in a process's log."""
_MISTAKE = re.compile(
    rf" ERROR .*event=exit code=[0-9]+ ((?:{'|'.join(row.code for kind in (SettingError, UsageError) for row in kind.rows)}): .*)"
)
_STDERR = 2
_AT_ONCE = select.PIPE_BUF
"""A pipe that can be written at all takes so many bytes without a wait (pipe(7))."""
_PENDING_MAX = 1 << 20
"""Bytes that wait for a reader: some ten thousand lines."""
_PATIENCE_S = 2.0
"""At the end, for a reader that takes nothing."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


class _Output(io.TextIOBase):
    """Standard output for which nobody waits: what its reader does not take yet waits here, to a bound; what is beyond it is counted."""

    def __init__(self) -> None:
        """Nothing waits."""
        super().__init__()
        self._pending = bytearray()
        self._lost = 0
        """Lines that nobody will see."""
        # Threads may say something too.
        self._one_at_a_time = threading.RLock()

    @property
    @override
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it as an attribute
        return getattr(sys.stdout, "encoding", None) or "utf-8"

    @override
    def isatty(self) -> bool:
        return sys.stdout is not None and sys.stdout.isatty()

    @override
    def fileno(self) -> int:
        return sys.stdout.fileno()

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, text: str) -> int:
        """Take a text; an error is that of the output, at this write or one before."""
        try:
            descriptor = self.fileno()
        except (OSError, AttributeError):
            # It is no file of the system's.
            return sys.stdout.write(text)
        content = text.encode(self.encoding, errors="replace")
        with self._one_at_a_time:
            if len(self._pending) + len(content) > _PENDING_MAX:
                self._lost += content.count(b"\n")
            else:
                self._tell_lost()
                self._pending += content
            self._drain(descriptor)
        return len(text)

    @property
    def is_behind(self) -> bool:
        """Does something wait for the reader?"""
        return bool(self._pending)

    def go_on(self) -> None:
        """Give a reader that was slow what waits for it."""
        with contextlib.suppress(OSError):
            self.write("")

    def finish(self) -> None:
        """Before this process ends: a reader that takes something gets all of it, one that takes nothing holds nobody."""
        with self._one_at_a_time, contextlib.suppress(OSError, AttributeError):
            self._tell_lost()
            while self._pending and _takes_more(self.fileno(), _PATIENCE_S):
                self._drain(self.fileno())

    def _tell_lost(self) -> None:
        if self._lost:
            said = f"{self._lost} lines are not shown here: nobody read them; the processes' logs have them\n"
            self._pending += said.encode()
            self._lost = 0

    def _drain(self, descriptor: int) -> None:
        try:
            while self._pending and _takes_more(descriptor, 0):
                del self._pending[: os.write(descriptor, self._pending[:_AT_ONCE])]
        except OSError:
            self._pending.clear()
            raise


def _takes_more(descriptor: int, patience_s: float) -> bool:
    """Would a write of `_AT_ONCE` bytes return at once, be it with an error?"""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(patience_s * 1000))


class _Console(Console):
    """Ends nothing when nobody reads it any more (`recovery msrun ... | head`), where Rich's own would end the program."""

    @override
    def _write_buffer(self) -> None:
        try:
            super()._write_buffer()
        except OSError:
            # Rich keeps what could not be written, and would write all of it again with every further line.
            self._buffer.clear()
            raise

    @override
    def on_broken_pipe(self) -> None:
        # What Python still holds of it would make the interpreter's exit a failure.
        standard_streams.send_nowhere(sys.stdout)
        self.quiet = True
        self._buffer.clear()
        say("nobody reads this launcher's output any more; the processes' logs go on", style="yellow")


output = _Output()
console = _Console(file=cast("IO[str]", output), highlight=False, soft_wrap=True, emoji=False, markup=False)
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
        if _takes_more(_STDERR, 0):
            os.write(_STDERR, f"{text}\n".encode(errors="replace"))


_unknown_said: set[str] = set()


def say_unknown(what: str, error: Exception) -> None:
    """Say once what is not known although it should be; whoever asked goes on without it."""
    said = f"{what} is not known ({type(error).__name__}: {error}); the job goes on without it"
    if said not in _unknown_said:
        _unknown_said.add(said)
        say(said, style="yellow")


_mistakes_shown: set[str] = set()
"""Every rank makes the same."""


def mistake_in(line: str) -> str:
    """The wrong setting or use that a line of a log ends a process with, as one sentence; empty: it says none."""
    found = _MISTAKE.search(line)
    return found[1] if found else ""


def is_shown(line: str) -> bool:
    """Does it say a mistake that a person has seen on this console?"""
    return mistake_in(line) in _mistakes_shown


def show_line(label: str, line: str, *, number: int) -> None:
    """A line of a process's log behind its label, in the colour of its number. The same mistake is shown once, however many ranks make it."""
    if is_shown(line):
        return
    if mistake := mistake_in(line):
        _mistakes_shown.add(mistake)
    # What cannot be shown is in the log itself.
    with contextlib.suppress(OSError):
        console.print(Text.assemble((f"[{label}] ", _COLOURS[number % len(_COLOURS)]), line))


_STEERING = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[(?![0-9;:]*m)[0-?]*[ -/]*[@-~]?|\x1b(?!\[)[ -/]*[0-~]?|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]"
)
"""Whatever moves a cursor or sets up a terminal; colours and tabs stay."""
_is_shared = False
"""The terminal has a line below all others, so what is printed may not move the cursor."""


def share_terminal(*, shared: bool) -> None:
    """Print from now on what leaves a line below all others where it is; False: what the processes write, as they write it."""
    global _is_shared  # noqa: PLW0603 - a process has one console
    _is_shared = shared


def lines_of(text: str) -> list[str]:
    """The lines of a process's log as they are shown.

    Beside a line of our own each is what a terminal would have in the end: progress bars write one over the other.
    """
    if not _is_shared:
        return text.splitlines()
    whole = text.removesuffix("\n").split("\n")
    return [_STEERING.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in whole]


_bar = ""


def note_unfinished(text: str) -> None:
    """What rank 0 has written behind its last whole line: a progress bar writes one state over the other."""
    global _bar  # noqa: PLW0603 - as above
    states = [state for state in text.split("\r") if state.strip()] if "\r" in text else []
    _bar = _STEERING.sub("", states[-1]) if states else ""


def bar_of_rank_0() -> str:
    """The newest state of a progress bar that rank 0 draws; empty: it draws none now."""
    return _bar


atexit.register(output.finish)


def open_log(path: Path, *, start: int) -> BinaryIO:
    """Open a process's log at its end, behind a line that says which start follows. Tracebacks in it may hold anything: it is its owner's.

    Raises:
        OSError: it cannot be opened, or takes no line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A process that was killed may have left half a line.
    begun = "" if _ends_with_a_line(path) else "\n"
    log = owner_files.at_its_end(path)
    mark = f"{begun}{MARK} {path.stem} start {start} {clock.instant(clock.wall_ms())} {MARK}\n".encode()
    try:
        # What takes a part of it says why with the rest: a disk is full, or the file may not be larger.
        while mark:
            mark = mark[log.write(mark) :]
    except OSError:
        log.close()
        raise
    return log


def _ends_with_a_line(path: Path) -> bool:
    """False also where that cannot be known: an empty line does no harm."""
    try:
        with owner_files.to_read(path) as log:
            if not log.seek(0, os.SEEK_END):
                return True
            log.seek(-1, os.SEEK_END)
            return log.read(1) == b"\n"
    except FileNotFoundError:
        return True
    except OSError:
        return False
