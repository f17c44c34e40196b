"""The workers' logs on the console while one waits: each line behind its rank."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from recovery import owner_files
from recovery.launch import console

_POLL_S = 0.2
_PIECE = 1 << 16
"""Bytes of a log that are looked at at once. A line that is longer is shown in pieces."""


class Tail:
    """One log, from its end as it was at the beginning."""

    def __init__(self, path: Path, label: str, *, number: int, only: str = "") -> None:
        """Begin behind what is there.

        Args:
            path: of the log.
            label: the rank; the place on this host while only the scheduler knows the rank.
            number: chooses the colour.
            only: what the lines that are shown hold.
        """
        self._only = only
        self._path, self._label, self._number = path, label, number
        self._offset, self._is_named = 0, False
        self.has_more = False
        """Something may be left: a loud process is shown piece by piece, and the launcher sees to all its processes in between."""
        with contextlib.suppress(OSError):
            self._offset = path.stat().st_size

    def show(self, *, to_the_end: bool = False) -> None:
        """Print a piece of what is new, in whole lines; all of it, and a last one without its end, only when nothing can follow.

        A log that cannot be read hides no other.
        """
        self.has_more = False
        try:
            self._show(to_the_end=to_the_end)
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._is_named:
                console.say(
                    f"{self._path} is not shown: it cannot be read ({error.strerror})", style="yellow"
                )
            self._is_named = True

    def _show(self, *, to_the_end: bool) -> None:
        with owner_files.to_read(self._path) as log:
            if os.fstat(log.fileno()).st_size < self._offset:
                console.say(f"{self._path} was truncated; it is shown from its beginning", style="yellow")
                self._offset = 0
            log.seek(self._offset)
            piece = b""
            while piece := log.read(_PIECE):
                whole = piece[: piece.rfind(b"\n") + 1] or (
                    piece if to_the_end or len(piece) == _PIECE else b""
                )
                if not whole:
                    break
                for line in console.lines_of(whole.decode(errors="replace")):
                    if self._only in line:
                        console.show_line(self._label, line, number=self._number)
                self._offset += len(whole)
                log.seek(self._offset)
                if not to_the_end:
                    self.has_more, piece = len(piece) == _PIECE, piece[len(whole) :]
                    break
            if self._label == "0" and not self.has_more:
                console.note_unfinished(piece.decode(errors="replace"))


async def follow(tails: list[Tail]) -> None:
    """Until cancelled; shows the rest then."""
    try:
        while True:
            for tail in tails:
                tail.show()
            console.output.go_on()
            await asyncio.sleep(0 if any(tail.has_more for tail in tails) else _POLL_S)
    finally:
        for tail in tails:
            tail.show(to_the_end=True)
