"""What a process prints whose log cannot be written: a full disk, another user's file. It is shown on the console, and its end is kept."""

from __future__ import annotations

import asyncio
import os
from typing import BinaryIO

from recovery.launch import console

_KEPT_BYTES = 64 * 1024
_PART = 64 * 1024


class UnloggedOutput:
    """Of one start of a process."""

    def __init__(self, label: str, *, number: int) -> None:
        """Nothing is printed yet.

        Args:
            label: stands before each line.
            number: chooses its colour.
        """
        self._label, self._number = label, number
        self._read_end = -1
        self._printed = bytearray()
        """Its end."""
        self._unshown = bytearray()
        """A line that has no end yet."""

    def open(self) -> BinaryIO:
        """Give what the process writes to. Nobody who prints waits for the console.

        Raises:
            OSError: a pipe cannot be had.
        """
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        asyncio.get_running_loop().add_reader(self._read_end, self._take)
        return os.fdopen(write_end, "wb", buffering=0)

    def lines(self) -> list[str]:
        """The last lines that it has printed until now."""
        while self._read_end >= 0 and self._take():
            pass
        return self._printed.decode(errors="replace").splitlines()

    def _take(self) -> bool:
        """Show what has come. Is there perhaps more?"""
        try:
            part = os.read(self._read_end, _PART)
        except BlockingIOError:
            return False
        self._printed = (self._printed + part)[-_KEPT_BYTES:]
        self._unshown += part
        if part:
            whole, _, self._unshown = self._unshown.rpartition(b"\n")
            self._show(whole)
            return True
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        self._read_end = -1
        self._show(self._unshown)
        return False

    def _show(self, text: bytearray) -> None:
        for line in console.lines_of(text.decode(errors="replace")):
            console.show_line(self._label, line, number=self._number)
