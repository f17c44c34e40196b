"""What a process tells its launcher beside its exit code, in the file that the launcher has named (`MS_FINISHED_FILE`).

An exit code alone does not say whose it is, or on which side of the job's end a script failed: any script may end with any number. So the
engine notes each exit code with which it ends a process itself, and that the job has finished.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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


def finished_in(text: str) -> bool:
    """Does a file's text say that the job had finished? One that a process has only made does."""
    return not text or _FINISHED in text.splitlines()


def exit_code_in(text: str) -> int | None:
    """The exit code of the engine's own that a file's text names; None: none."""
    codes = [line.removeprefix(_CODE) for line in text.splitlines() if line.startswith(_CODE)]
    return int(codes[-1]) if codes and codes[-1].isdigit() else None


def _add(path: Path, line: str) -> None:
    with path.open("a", encoding="ascii") as file:
        file.write(f"{line}\n")
