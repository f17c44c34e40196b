"""The training process's side of the process that writes its checkpoints (writer_program.py)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from recovery.readable import is_readable

_PROGRAM = Path(__file__).with_name("writer_program.py")
_OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 1.0
_STUCK_S = 60.0
"""A disk that takes nothing for so long: this save is given up, and training goes on."""
_STOPPED_S = 2.0
"""So long a stopped writer (SIGSTOP) is waited for: nothing comes of it, and the next save waits. A user who stops and continues the whole process
group continues both; within a second they run."""
_STOPPED = "Tt"
_END_S = 5.0


class WriterProcess:
    """Writes what lies in shared memory to open files, one at a time. Not thread-safe: one save is under way at a time."""

    def __init__(self, *, stuck_s: float = _STUCK_S) -> None:
        """Start it. After so many seconds in which nothing was written it is ended and the save given up.

        Raises:
            OSError: it cannot be started.
        """
        self._stuck_s = stuck_s
        # Each message arrives whole or not at all, and the end of either side is seen by the other.
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-S", str(_PROGRAM), str(theirs.fileno()), str(os.getpid())]
            # Until it ignores them itself: one to the whole group would end it with a traceback while it starts.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_GROUP)
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program by our own interpreter
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            except BaseException:
                self._channel.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Can it be given another file?"""
        return self._process.poll() is None

    def write(self, shared: int, size: int, target: int) -> str:
        """Have the first bytes of a shared memory, by its descriptor, written to an open file, which stays the caller's; gives their SHA-256, hex.

        Raises:
            OSError: it was not written whole: the disk's own error, or the writer has ended or was stopped. Then it is not used again.
        """
        socket.send_fds(self._channel, [str(size).encode()], [shared, target])
        answer = self._await_answer(target)
        what, _, detail = answer.partition(" ")
        if what == "written":
            return detail
        number = int(detail)
        raise OSError(number, os.strerror(number))

    def _await_answer(self, target: int) -> str:
        written, waited_s, stopped_s = 0, 0.0, 0.0
        while not is_readable(self._channel, _LOOK_S):
            now = os.fstat(target).st_size
            waited_s = 0.0 if now > written else waited_s + _LOOK_S
            written = now
            stopped_s = stopped_s + _LOOK_S if self._is_stopped() else 0.0
            if stopped_s >= _STOPPED_S or waited_s >= self._stuck_s:
                self.close()
                what = (
                    "was stopped (SIGSTOP), and is replaced"
                    if stopped_s >= _STOPPED_S
                    else f"has written nothing for {self._stuck_s:.0f} s"
                )
                raise OSError(errno.ETIMEDOUT, f"the process that writes it {what}")
        with contextlib.suppress(ConnectionError):
            answer = self._channel.recv(256).decode()
            if answer:
                return answer
        self.close()
        raise OSError(errno.EPIPE, f"the process that writes it has ended ({self._process.returncode})")

    def _is_stopped(self) -> bool:
        """Does the kernel hold it still? False where it does not say."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(") ")[2][:1] in _STOPPED

    def close(self) -> None:
        """End it; what it was writing is given up."""
        self._channel.close()
        self._process.kill()
        # A process inside a disk that hangs cannot even be killed; it is the kernel's then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
