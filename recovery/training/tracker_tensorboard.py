"""TensorBoard: one directory per run of the job, and in it one file per generation, which begins by purging the steps that are made again.

The files are written here and not by a SummaryWriter: that one keeps up to two minutes of values in memory, which a killed process takes along,
and TensorBoard reads files by the second in their names, which two generations may share.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from recovery import clock, owner_files
from recovery.training.tracker import Row, TrackedRun

_NAME = "events.out.tfevents."
_VERSION = "brain.Event:2"


class _File:
    """The events of one generation."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._records = RecordWriter(self)
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """What RecordWriter calls with a whole record."""
        self._waiting += data

    def add(self, event: Event) -> None:
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """A record is there or not."""
        data, self._waiting = bytes(self._waiting), bytearray()
        owner_files.append_whole(self._file, data)

    def log(self, rows: list[Row]) -> None:
        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self.add(Event(wall_time=row.wall_ms / 1000, step=row.step, summary=Summary(value=values)))
        self.flush()

    def close(self, *, finished: bool) -> None:
        self._file.close()


def begin(run: TrackedRun, *, directory: str | os.PathLike[str] = "runs") -> _File:
    """Go on with the run in its directory, `<directory>/<job>-<run>`.

    Args:
        run: of the job.
        directory: TensorBoard's --logdir; where the rank may be taken by another host, one that all of them see.
    """
    folder = Path(directory) / run.key
    folder.mkdir(parents=True, exist_ok=True)
    file = _File(
        folder / f"{_NAME}{_second(folder):010d}.{socket.gethostname()}.{os.getpid()}.{run.generation}"
    )
    now_s = clock.wall_ms() / 1000
    file.add(Event(wall_time=now_s, file_version=_VERSION))
    # Behind a rollback: whatever earlier files say of this step or a later one does not count.
    start = SessionLog(status=SessionLog.START)
    file.add(Event(wall_time=now_s, step=run.step + 1, session_log=start))
    file.flush()
    return file


def _second(folder: Path) -> int:
    """For the name: later than all that are there, whatever the clock of the host was that wrote them."""
    seconds = (path.name.removeprefix(_NAME).partition(".")[0] for path in folder.glob(f"{_NAME}*"))
    newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
    return max(clock.wall_ms() // 1000, newest + 1)
