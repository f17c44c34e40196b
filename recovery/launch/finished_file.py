"""The file in which a process of a launcher notes what its exit code cannot say (`recovery/end_note.py`); read once the process has ended."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from recovery.end_note import VARIABLE, exit_code_in, finished_in


class EndNote(NamedTuple):
    """What a process has noted."""

    finished: bool
    """It had heard that its job has finished."""
    exit_code: int | None
    """With which the engine ended it; None: it did not, or nobody could note it."""


class FinishedFile:
    """Of one process of a launcher."""

    def __init__(self, directory: Path, name: str) -> None:
        """Note where it lies.

        Args:
            directory: of the launcher's logs.
            name: of the process there.
        """
        self._path = directory / f".{name}.finished"

    def variables(self) -> dict[str, str]:
        """What the next process finds in its environment: a file that is not there; nothing where that cannot be had."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            return {}
        name = str(self._path)
        return {VARIABLE: name} if name.isprintable() else {}

    def take(self) -> EndNote:
        """Give what the process has noted. It has ended, and the file goes with it."""
        with contextlib.suppress(OSError):
            text = self._path.read_text(encoding="ascii", errors="replace")
            self._path.unlink()
            return EndNote(finished_in(text), exit_code_in(text))
        return EndNote(finished=False, exit_code=None)
