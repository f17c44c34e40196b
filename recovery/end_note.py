"""What a process tells its launcher beside its exit code, at the path that the launcher has named (`MS_FINISHED_FILE`).

An exit code alone does not say whose it is, or on which side of the job's end a script failed: any script may end with any number. So the
engine notes each exit code with which it ends a process itself, and that the job has finished.

The path is that of a pipe which the launcher holds: a disk that is full or may not be written loses no note, and makes none.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path
from typing import NamedTuple

VARIABLE = "MS_FINISHED_FILE"
_FINISHED = "finished"
_CODE = "exit "
_BEGUN = "begun"
_PART = 4096


def note_finished(path: Path) -> None:
    """Note that the job has finished.

    Args:
        path: of the pipe.

    Raises:
        OSError: it cannot be written.
    """
    _add(path, _FINISHED)


def note_exit(code: int) -> None:
    """Note that the engine ends this process with an exit code. Where it cannot, the code counts as the script's own, and stderr says so."""
    _note(f"{_CODE}{code}", "its launcher takes the code for the script's own")


def note_begun() -> None:
    """Note that this process becomes its program now. Where it cannot, nobody knows that it has begun, and stderr says so."""
    _note(_BEGUN, "its launcher does not know that it has begun")


def _note(line: str, consequence: str) -> None:
    name = os.environ.get(VARIABLE)  # noqa: TID251 - a process whose settings are wrong ends by this too
    if not name:
        return
    try:
        _add(Path(name), line)
    except OSError as error:
        _write_if_it_can(2, f"event=not_noted {line} ({error.strerror}): {consequence}\n")


class EndNote(NamedTuple):
    """What a process has noted."""

    finished: bool
    """It had heard that its job has finished."""
    exit_code: int | None
    """With which the engine ended it; None: it did not, or nobody could note it."""
    begun: bool = False
    """It had become its program. One that was forked notes nothing: it has begun where the template says so."""


class EndNotes:
    """Of the processes of one name, one after the other. A launcher keeps their pipe, so that its path never means another file."""

    def __init__(self) -> None:
        """There is no pipe before the first process: a launcher in the background is another process until then."""
        self._read_end, self._write_end = -1, -1

    def variables(self) -> dict[str, str]:
        """What the next process finds in its environment. What the one before has noted goes.

        Raises:
            OSError: a pipe cannot be had.
        """
        if self._read_end < 0:
            self._read_end, self._write_end = os.pipe()
            os.set_blocking(self._read_end, False)
            weakref.finalize(self, _close, self._read_end, self._write_end)
        self.take()
        return {VARIABLE: f"/proc/{os.getpid()}/fd/{self._write_end}"}

    def take(self) -> EndNote:
        """Give what the process has noted. It has ended, and its note goes."""
        lines = self._read().splitlines()
        codes = [line.removeprefix(_CODE) for line in lines if line.startswith(_CODE)]
        code = int(codes[-1]) if codes and codes[-1].isdigit() else None
        return EndNote(_FINISHED in lines, code, _BEGUN in lines)

    def _read(self) -> str:
        noted = b""
        while self._read_end >= 0:
            try:
                noted += os.read(self._read_end, _PART)
            except BlockingIOError:
                break
        return noted.decode("ascii", errors="replace")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _add(path: Path, line: str) -> None:
    """A pipe takes a line whole or not at all, and nobody waits for a launcher that does not read."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        # In another pid namespace the path may mean what another program has open.
        if path.is_relative_to("/proc") and not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENXIO, "it is no pipe", str(path))
        os.write(descriptor, f"{line}\n".encode("ascii"))
    finally:
        os.close(descriptor)


def _write_if_it_can(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode(errors="replace"))
    except OSError:
        return
