"""A save costs the step one copy: into memory that is kept, from which another process writes while training goes on.

One capture at a time in a process; the next one waits until the file of the one before is written, so that a disk that cannot keep up slows
training instead of filling memory. Where a state cannot be captured it is written as it was before, and one line says why.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
from pathlib import Path

from recovery import clock
from recovery.checkpoint.staging_buffer import KeptMemory
from recovery.checkpoint.writer_process import WriterProcess
from recovery.training.state import CannotLayOutError, LaidOut, LaysOut

_logger = logging.getLogger("recovery.training")
_HEAD_START = 2
_HEAD_START_MAX_S = 1.0
"""A capture that took longer than half of it did so for another reason."""


def head_start_s(took_ms: int) -> float:
    """How long the other ranks of this host are given, after a capture that took `took_ms`.

    They capture the same step now, and where processors are few, what is behind one rank's capture would take them from another's: the median
    step waited for 20 ms instead of 12 (50 MB, 4 ranks on 2 processors).
    """
    return min(_HEAD_START * took_ms / 1_000, _HEAD_START_MAX_S)


class StagingBuffer:
    """What one process needs to capture states: the memory and the writer, both kept until it ends."""

    def __init__(self) -> None:
        """Nothing is kept and no writer runs before the first capture."""
        self._memory = KeptMemory()
        self._writer: WriterProcess | None = None
        self._in_use = threading.Lock()
        self._is_waited_for = threading.Event()
        self._is_checked = False
        """Was a capture of this process compared with the state, and its file with the capture?"""
        self._given_up = ""
        self._said: set[str] = set()

    @property
    def writer_pid(self) -> int | None:
        """Process id of the writer; None: there is none."""
        return self._writer.pid if self._writer is not None and self._writer.is_alive else None

    def capture(self, state: object, *, waits: bool = True) -> StagedState | None:
        """Copy a state as it is now; None: it has to write itself, and a line has said why.

        In the main thread: the writer dies with the thread that began it.

        Args:
            state: which.
            waits: until the capture before is written; False: then there is none.
        """
        if not isinstance(state, LaysOut) or self._given_up:
            return None
        if not self._in_use.acquire(blocking=waits):
            return None
        self._is_waited_for.clear()
        began_ms = clock.monotonic_ms()
        try:
            file = state.lay_out()
            memory = self._memory.take(file.size)
            file.copy_to(memory)
            writer = self._living_writer()
            if not self._is_checked and file.differs_from(memory):
                self._give_up("the copy of its first save differs from the state")
                self._in_use.release()
                return None
            file.let_go()
        except (CannotLayOutError, MemoryError, OSError) as error:
            self._in_use.release()
            self._say_once(f"{type(error).__name__}: {error}")
            return None
        except BaseException:
            self._in_use.release()
            raise
        return StagedState(self, writer, file, memory, head_start_s(clock.monotonic_ms() - began_ms))

    def _living_writer(self) -> WriterProcess:
        if self._writer is None or not self._writer.is_alive:
            if self._writer is not None:
                self._writer.close()
            self._writer = WriterProcess()
        return self._writer

    def write(self, captured: StagedState, target: int) -> str:
        """Have it written; any thread, for the one capture that is under way. Returns the SHA-256, hex.

        Raises:
            OSError: it was not written, or cannot be read back.
        """
        digest = captured.writer.write(self._memory.descriptor, captured.file.size, target)
        if not self._is_checked:
            self._read_back(captured, target)
        return digest

    def _read_back(self, captured: StagedState, target: int) -> None:
        """The first file of a process is read as a restore would: whatever a release of torch writes otherwise is seen now, and not then."""
        try:
            is_read = captured.file.is_read_from(Path(f"/proc/self/fd/{target}"), captured.memory)
            reason = "" if is_read else "what was read back is not what was copied"
        except Exception as error:  # noqa: BLE001 - a framework raises anything at a file that it does not read
            reason = f"its file cannot be read back ({error})"
        if reason:
            self._give_up(reason)
            raise OSError(errno.EIO, reason)
        self._is_checked = True

    def _give_up(self, reason: str) -> None:
        self._given_up = reason
        _logger.error("event=capture_given_up reason=%r states write themselves from now on", reason)

    def _say_once(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _logger.warning(
                "event=not_captured reason=%r the state writes itself, and the step waits for it", reason
            )

    def skip_delay(self) -> None:
        """Somebody waits for the end of the capture that is under way: it gives way to nobody any more."""
        self._is_waited_for.set()

    def delay_write(self, at_most_s: float) -> None:
        """Wait, unless somebody waits for this capture."""
        self._is_waited_for.wait(at_most_s)

    def release(self) -> None:
        """The capture that was under way is over."""
        self._in_use.release()

    def close(self) -> None:
        """End the writer, also in the middle of a file, and give the memory back. A later capture starts them again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        self._memory.release()


class StagedState:
    """One state as it was. `write` is called at most once, `close` exactly once, both from any thread."""

    def __init__(
        self,
        captures: StagingBuffer,
        writer: WriterProcess,
        file: LaidOut,
        memory: memoryview,
        head_start_s: float,
    ) -> None:
        """Made by `StagingBuffer.capture`."""
        self._captures, self._head_start_s = captures, head_start_s
        self.writer, self.file, self.memory = writer, file, memory

    def delay_write(self) -> None:
        """Let the other ranks of this host have their captures. For the thread that saves, before it does anything else."""
        self._captures.delay_write(self._head_start_s)

    def write(self, target: int) -> tuple[str, int]:
        """Write the file behind an open descriptor; SHA-256 (hex) and size.

        Raises:
            OSError: it was not written whole.
        """
        return self._captures.write(self, target), self.file.size

    def close(self) -> None:
        """Let the next capture begin."""
        self._captures.release()


_of_process: tuple[int, StagingBuffer] | None = None


def of_this_process() -> StagingBuffer:
    """The one of this process; a fork has its own. Call it in the main thread."""
    global _of_process  # noqa: PLW0603 - the memory and the writer belong to the process, as its standard streams do
    if _of_process is None or _of_process[0] != os.getpid():
        _of_process = os.getpid(), StagingBuffer()
        # A process that ends otherwise closes the channel, and the writer ends by that.
        atexit.register(_of_process[1].close)
    return _of_process[1]
