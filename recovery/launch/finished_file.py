"""Has a process heard that its job has finished? It makes a file when it does; its launcher looks once the process has ended.

An exit code does not say which side of the end a script failed on, and the scheduler of a finished job is soon gone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


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
        return {"MS_FINISHED_FILE": name} if name.isprintable() else {}

    def take(self) -> bool:
        """Had the process heard so? It has ended, and the file goes with it."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False
