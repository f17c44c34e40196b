"""What a process tells its launcher beside its exit code, in the file that the launcher has named (`MS_FINISHED_FILE`).

An exit code alone does not say whose it is, or on which side of the job's end a script failed: any script may end with any number. So the
engine notes each exit code with which it ends a process itself, and that the job has finished.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

VARIABLE = "MS_FINISHED_FILE"
_FINISHED = "finished"
_CODE = "exit "


def note_finished(path: Path) -> None:
    """Note that the job has finished.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be written.
    """
    _add(path, _FINISHED)


def note_exit(code: int) -> None:
    """Note that the engine ends this process with an exit code. Where it cannot, the code counts as the script's own."""
    name = os.environ.get(VARIABLE)  # noqa: TID251 - a process whose settings are wrong ends by this too
    if name:
        with contextlib.suppress(OSError):
            _add(Path(name), f"{_CODE}{code}")


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
            lines = text.splitlines()
            codes = [line.removeprefix(_CODE) for line in lines if line.startswith(_CODE)]
            # One that a process has only made says that the job had finished, too.
            finished = not text or _FINISHED in lines
            return EndNote(finished, int(codes[-1]) if codes and codes[-1].isdigit() else None)
        return EndNote(finished=False, exit_code=None)


def _add(path: Path, line: str) -> None:
    with path.open("a", encoding="ascii") as file:
        file.write(f"{line}\n")
