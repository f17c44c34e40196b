"""Checkpoints in memory: the same contribution as on the disk, more often, for the loss of a process that leaves its host alone."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from recovery.checkpoint import catalogue, memory_tier, names
from recovery.checkpoint.contribution import Layout
from recovery.checkpoint.files import reason_of
from recovery.checkpoint.memory_tier import MemoryHome
from recovery.checkpoint.publish import Content, Stage, WrittenContent, stage
from recovery.checkpoint.retention import remove
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointError, CheckpointWriteError
from recovery.training import capture
from recovery.training.capture import Captured
from recovery.training.pending_checkpoint import PendingCheckpoint
from recovery.training.save_thread import SaveThread
from recovery.training.session import Session
from recovery.worker import memory_home

_logger = logging.getLogger("recovery.training")

_SHARE = 4
"""The ranks of a host take a quarter of what is free, where nobody says how much: data loaders and the next allocation need the rest."""

Write = Callable[[BinaryIO], None]


class MemoryCheckpoints:
    """One rank's checkpoints in memory, over one generation. Without MS_MEMORY_CHECKPOINT_STEPS it does nothing."""

    def __init__(self) -> None:
        """Nothing is made before `begin`."""
        self._layout = Layout.RANK
        self._every_steps = 0
        """0: there are none."""
        self._prefix, self._directory, self._bytes_max = "", Path(), 0
        self._too_little = -1
        """Bytes that did not suffice for one; nothing is tried before more are left."""
        self._thread = SaveThread("recovery-save-memory")

    def begin(self, session: Session, prefix: str, layout: Layout) -> None:
        """Take this rank's directory, and clear up what other jobs and a rolled-back history have left.

        Args:
            session: at the step where the generation begins.
            prefix: of the files' names.
            layout: of the files on the disk. What ranks write there together, each has for itself in memory: no peer's end takes a part.
        """
        settings = session.memory
        if session.local_rank == 0:
            memory_tier.clear_up(settings.base)
        if not settings.every_steps or not session.recovery_enabled:
            return
        try:
            self._directory = _home_of(session).directory(session.run, session.rank)
        except OSError as error:
            _logger.warning(
                "event=memory_checkpoints_off path=%s reason=%r checkpoints go to the disk alone",
                settings.base,
                reason_of(error),
            )
            return
        self._prefix, self._every_steps = prefix, settings.every_steps
        self._layout = Layout.RANK if layout is Layout.SHARED else layout
        session.checkpoint_directory(self._directory, prefix)
        held = [one for one in self._held(session) if one.step <= session.step]
        self._keep_only(held)
        share = (memory_tier.free_bytes(settings.base) + _bytes_of(held)) // _SHARE
        self._bytes_max = settings.bytes_max or share // session.local_world_size
        session.before_done(self.join)
        session.on_generation_end(self.join)

    def is_due(self, session: Session) -> bool:
        """Is this a step of the schedule? It is by the number of the step, which all ranks share."""
        return self._every_steps > 0 and session.step % self._every_steps == 0

    def save(self, session: Session, *, behind_steps: bool) -> None:
        """Save the state of this step.

        Args:
            session: at the step.
            behind_steps: a state that cannot be captured is copied, and a thread writes the copy; False: the step waits for the write.
        """
        assert session.state is not None, "callbacks run inside steps()"
        self.join()
        left_bytes = self._make_space(session)
        if left_bytes <= self._too_little:
            return
        name = names.file_name(self._prefix, epoch=session.epoch, step_in_epoch=session.step_in_epoch)
        save = PendingCheckpoint(session, name, layout=self._layout, in_memory=True)
        # A save on a slow disk that is under way has the memory for captures: this one is over sooner, and does not wait for it.
        captured = capture.of_this_process().capture(session.state, waits=False)
        if captured is not None:
            self._thread.begin(save, lambda: self._finish_captured(session, save, captured, left_bytes))
        elif behind_steps:
            write = session.state.snapshot().write
            self._thread.begin(
                save, lambda: self._finish(session, save, self._stage(save, write, left_bytes))
            )
        else:
            staged = self._stage(save, session.state.write, left_bytes)
            self._thread.begin(save, lambda: self._finish(session, save, staged))

    def join(self) -> None:
        """Wait for the save under way."""
        self._thread.join()

    def _make_space(self, session: Session) -> int:
        """Remove what no plan needs any more; how many bytes are left for one more.

        The newest that all ranks hold stays, and until that is the newest of all, the two newest: ranks are one save apart at most. What is
        older than the newest on the disks of all ranks goes all the same: no plan goes there while that is whole.
        What stays is what lies in other hosts' memory as a whole, and what is being copied there: who has lost its host goes back to that.
        """
        held = self._held(session)
        committed = [one for one in held if one.step <= session.committed_step][:1]
        kept = (
            committed
            if committed == held[:1]
            else [*(one for one in held[:2] if one not in committed), *committed]
        )
        kept = [one for one in kept if one.step >= session.disk_commits.newest_step]
        kept += [one for one in held if one.step in session.spared_in_memory and one not in kept]
        self._keep_only(kept)
        return self._bytes_max - _bytes_of(kept)

    def _finish_captured(
        self, session: Session, save: PendingCheckpoint, captured: Captured, left_bytes: int
    ) -> None:
        try:
            if captured.file.size > left_bytes:
                self._refuse(save, left_bytes)
                return
            staged = stage(self._directory, [WrittenContent(save.name, captured.write, save.role)])
        except CheckpointWriteError as error:
            save.failed(str(error))
            return
        finally:
            captured.close()
        self._finish(session, save, staged)

    def _stage(self, save: PendingCheckpoint, write: Write, left_bytes: int) -> Stage | None:
        bounded = _Bounded(write, left_bytes)
        try:
            return stage(self._directory, [Content(save.name, bounded.write, save.role)])
        except Exception as error:
            # torch.save makes an error of its own of what its stream raises.
            if bounded.is_exceeded:
                self._refuse(save, left_bytes)
            elif isinstance(error, CheckpointWriteError):
                save.failed(str(error))
            else:
                raise
            return None

    def _refuse(self, save: PendingCheckpoint, left_bytes: int) -> None:
        """Say once that it does not fit, and try no more before more is left."""
        self._too_little = left_bytes
        text = f"it takes more than the {left_bytes} bytes that are left of {self._bytes_max} (MS_MEMORY_CHECKPOINT_BYTES)"
        save.failed(text)

    def _finish(self, session: Session, save: PendingCheckpoint, staged: Stage | None) -> None:
        if staged is None:
            return
        try:
            manifest, path = staged.finish(save.manifest, session.place_is_ours)
        except CheckpointWriteError as error:
            save.failed(str(error))
            return
        _home_of(session).note_use()
        save.published(catalogue.held_of(manifest, path))

    def _held(self, session: Session) -> list[HeldCheckpoint]:
        """What lies there, newest first."""
        try:
            found = catalogue.scan(
                self._directory, self._prefix, job=session.job, run=session.run, rank=session.rank
            )
        except CheckpointError as error:
            _logger.warning("event=memory_checkpoints_not_found %s", error)
            return []
        return list(found)

    def _keep_only(self, kept: list[HeldCheckpoint]) -> None:
        """Remove everything else: memory is too scarce for what is damaged, rolled back or was never finished."""
        spared = {Path(one.path).stem for one in kept}
        for file in sorted(self._directory.iterdir()):
            if file.stem in spared and not file.name.startswith("."):
                continue
            try:
                if names.parse(file.name) is not None:
                    remove(file)
                else:
                    file.unlink(missing_ok=True)
            except OSError as error:
                _logger.warning("event=checkpoint_not_removed path=%s reason=%r", file, reason_of(error))


class _Bounded:
    """Writes no more bytes than are left."""

    def __init__(self, write: Write, left_bytes: int) -> None:
        self._write, self._left_bytes = write, left_bytes
        self.is_exceeded = False

    def write(self, stream: BinaryIO) -> None:
        """As the writer that it was given."""
        self._write(_BoundedStream(stream, self))  # type: ignore[arg-type]  # a stream that only grows, as `Content.write` says

    def take(self, count: int) -> None:
        """Count bytes.

        Raises:
            OSError: fewer are left.
        """
        self._left_bytes -= count
        if self._left_bytes < 0:
            self.is_exceeded = True
            raise OSError(errno.EDQUOT, "it takes more than its share of memory")


class _BoundedStream:
    def __init__(self, stream: BinaryIO, bounded: _Bounded) -> None:
        self._stream, self._bounded = stream, bounded

    def write(self, data: bytes) -> int:
        self._bounded.take(memoryview(data).nbytes)
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()


def _home_of(session: Session) -> MemoryHome:
    assert session.recovery_path is not None, "without recovery there are no checkpoints in memory"
    return memory_home.hold(
        session.memory.base, session.job, session.recovery_path, lambda: session.job_is_over
    )


def _bytes_of(held: list[HeldCheckpoint]) -> int:
    return sum(one.file_bytes for one in held)
