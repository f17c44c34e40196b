"""Which of Lightning's checkpoints this job has written at which step, so that those of steps that are taken back go with them.

Lightning's ModelCheckpoint gives a file another name (`-v1`) where one of its name is there already. Steps that are done again would find
the files that they have written before, and best and last checkpoint would have other names than in a training that nothing happened to.
What the record does not name is never touched.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from recovery.training.session import Session

_logger = logging.getLogger("recovery.lightning")
_NAME = ".recovery_written.jsonl"


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    run: int
    step: int
    name: str


_decoder = msgspec.json.Decoder(_Written)


def save_none_on_exception(callbacks: Iterable[Any]) -> None:
    """Lightning's ModelCheckpoint asks all ranks whether a file is there, and saves with them: one that leaves alone would wait for ever."""
    for callback in callbacks:
        callback.save_on_exception = False


def log_not_saved(path: Any, *, is_over: bool) -> None:
    """What saves on an exception would wait for ranks that are gone, or that train on.

    Args:
        path: where it was to be saved.
        is_over: the generation is over; else the exception is this rank's alone.
    """
    why = "the generation is over" if is_over else "an exception ends this rank alone"
    _logger.info("event=lightning_checkpoint_not_saved path=%s reason=%r", path, why)


def note(session: Session, path: Path) -> None:
    """A file is about to be written. One that is there, and that this job has not written, is nobody's to take back."""
    written = _read(path.parent)
    ours = {one.name for one in written if (one.job, one.run) == (str(session.job), session.run)}
    if path.name not in ours and path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    line = _Written(job=str(session.job), run=session.run, step=session.step, name=path.name)
    with (path.parent / _NAME).open("ab") as record:
        # On a line of its own: behind half a line, which a killed process has left, it would be lost with it.
        record.write(b"\n" + msgspec.json.encode(line) + b"\n")


def take_back(session: Session, directory: Path) -> None:
    """Remove what this job has written there behind the session's step. Its steps write it again."""
    written = _read(directory)
    behind = {
        one.name
        for one in written
        if (one.job, one.run) == (str(session.job), session.run) and one.step > session.step
    }
    for name in sorted(behind):
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
            _logger.info(
                "event=lightning_checkpoint_taken_back path=%s step=%d", directory / name, session.step
            )
    if behind:
        left = [one for one in written if one.name not in behind]
        staged = directory / f"{_NAME}.new"
        staged.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in left))
        staged.replace(directory / _NAME)


def _read(directory: Path) -> list[_Written]:
    try:
        lines = (directory / _NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        # Empty, or half of one that a killed process has left: its file was not begun.
        with contextlib.suppress(msgspec.DecodeError):
            found.append(_decoder.decode(line))
    return found
