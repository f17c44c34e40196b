"""One save, from the state of a step to the files with their manifest: the same for the disk and for memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from recovery.checkpoint.contribution import Manifest
from recovery.checkpoint.publish import Content, StagedCheckpoint, WrittenContent, stage
from recovery.errors import CheckpointWriteError
from recovery.training import capture
from recovery.training.capture import StagedState
from recovery.training.pending_checkpoint import PendingCheckpoint
from recovery.training.save_thread import SaveThread
from recovery.training.session import Session


class Target(NamedTuple):
    """Where a save goes."""

    session: Session
    """At the step that is saved."""
    directory: Path
    left_bytes: int | None = None
    """What it may take; None: as much as there is."""
    refuse: Callable[[int], str] = str
    """Told that it takes more than so many bytes; gives the reason in words."""


class Saver:
    """One save at a time: what cannot keep up slows training instead of filling memory. Belongs to the main thread."""

    def __init__(
        self,
        thread_name: str,
        *,
        published: Callable[[Session, PendingCheckpoint, Manifest, Path], None],
        failed: Callable[[PendingCheckpoint, str], None],
        is_urgent: bool,
    ) -> None:
        """Nothing is saved yet.

        Args:
            thread_name: of the thread that saves.
            published: called there when the files are complete and durable; nobody has been told yet.
            failed: called there, with the reason, when a save has failed.
            is_urgent: it is over soon. It does not wait for a capture that a slower save has under way, and lets no other rank go first.
        """
        self._thread = SaveThread(thread_name)
        self._published, self._failed, self._is_urgent = published, failed, is_urgent

    @property
    def is_under_way(self) -> bool:
        """Was a save begun that was not waited for?"""
        return self._thread.is_under_way

    def join(self) -> None:
        """Wait for the save under way."""
        self._thread.join()

    def save(
        self,
        target: Target,
        save: PendingCheckpoint,
        *,
        behind_steps: bool,
        files: Sequence[Content] = (),
    ) -> None:
        """Copy the state of this step while no step changes it; what writes the copy and makes it durable happens behind the next steps.

        Args:
            target: where it goes.
            save: of this step; the one before it was waited for.
            behind_steps: a state that cannot be captured is copied, and a thread writes the copy; False: the step waits for the write.
            files: what is written in the place of the state, copied already.
        """
        state = target.session.state
        assert state is not None, "callbacks run inside steps()"
        captured = None if files else capture.of_this_process().capture(state, waits=not self._is_urgent)
        if captured is not None:
            self._thread.begin(save, lambda: self._write_captured(target, save, captured))
            return
        if not files:
            write = state.snapshot().write if behind_steps else state.write
            files = [Content(save.name, write, save.role)]
            if not behind_steps:
                staged = self._stage(target, save, files)
                self._thread.begin(save, lambda: self._finish(target, save, staged))
                return
        self._thread.begin(save, lambda: self._finish(target, save, self._stage(target, save, files)))

    def _write_captured(self, target: Target, save: PendingCheckpoint, captured: StagedState) -> None:
        try:
            if target.left_bytes is not None and captured.file.size > target.left_bytes:
                self._failed(save, target.refuse(target.left_bytes))
                return
            if not self._is_urgent:
                captured.delay_write()
            staged = self._stage(target, save, [WrittenContent(save.name, captured.write, save.role)])
        finally:
            captured.close()
        self._finish(target, save, staged)

    def _stage(
        self, target: Target, save: PendingCheckpoint, contents: Sequence[Content | WrittenContent]
    ) -> StagedCheckpoint | None:
        bounded = _Bounded(target.left_bytes)
        try:
            return stage(target.directory, [bounded.content(content) for content in contents])
        except Exception as error:
            # torch.save makes an error of its own of what its stream raises.
            if bounded.is_exceeded and target.left_bytes is not None:
                self._failed(save, target.refuse(target.left_bytes))
            elif isinstance(error, CheckpointWriteError):
                self._failed(save, error.fact)
            else:
                raise
            return None

    def _finish(self, target: Target, save: PendingCheckpoint, staged: StagedCheckpoint | None) -> None:
        if staged is None:
            return
        try:
            manifest, path = staged.finish(save.manifest, target.session.still_owns_rank)
        except CheckpointWriteError as error:
            self._failed(save, error.fact)
            return
        self._published(target.session, save, manifest, path)


class _Bounded:
    """Writes no more bytes than are left."""

    def __init__(self, left_bytes: int | None) -> None:
        self._left_bytes = left_bytes
        self.is_exceeded = False

    def content(self, content: Content | WrittenContent) -> Content | WrittenContent:
        """Give it an end where fewer bytes are left than it takes. The size of what was captured is known before."""
        if self._left_bytes is None or isinstance(content, WrittenContent):
            return content
        write = content.write

        def bounded(stream: BinaryIO) -> None:
            write(_BoundedStream(stream, self))  # type: ignore[arg-type]  # a stream that only grows, as `Content.write` says

        return msgspec.structs.replace(content, write=bounded)

    def take(self, count: int) -> None:
        """Count bytes.

        Raises:
            OSError: fewer are left.
        """
        assert self._left_bytes is not None, "without a bound nothing is counted"
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
