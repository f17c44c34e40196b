"""A child process of a launcher, a worker proxy or a template, from its begin to its end: noticed, signalled, reaped with its session.

Neither asyncio nor subprocess is imported: a template imports this, and with it each process that is forked from one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from recovery import clock, thread_stacks
from recovery.readable import is_readable

POLL_S = 0.05
"""How often a child is polled where it has no descriptor: none is left, or the kernel knows none (before Linux 5.3)."""
_FOREVER_S = -1.0
_STOPPED = (b"T", b"t")
"""States of a process in /proc/PID/stat: by a signal, by who traces it."""
_TRACKER = b"multiprocessing.resource_tracker"
_TRACKER_MS = 1_000
"""It takes milliseconds; one that is stopped is not waited for much longer than that."""
_nothing = threading.Event()


class ChildProcess:
    """One child of this process. Usable from several threads."""

    def __init__(self, pid: int, *, is_forked: bool = True, leads_session: bool = True) -> None:
        """It has begun. Whoever made it waits for it: nobody else does.

        Args:
            pid: its process id.
            is_forked: from a template; False: it was spawned.
            leads_session: what is left of its session is killed behind it.
        """
        self.pid, self.is_forked = pid, is_forked
        self.status: int | None = None
        """Exit code; negative: the signal that killed it. None: it was not waited for yet, so that its number is its own."""
        self._leads_session = leads_session
        self._reaping, self._numbered = threading.Lock(), threading.Lock()
        """The first is held by whom reaps it, the second while its number is used: once it is free it may be another process's."""

    @property
    def has_ended(self) -> bool:
        """Has it, whether or not it was waited for?"""
        with self._numbered:
            if self.status is not None:
                return True
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def ask_to_end(self) -> None:
        """By SIGTERM, with all that it has started in its session."""
        self._signal_session(signal.SIGTERM)

    def ask_for_stacks(self) -> str:
        """Have it write the stacks of its threads, before it is ended: it may end by that. Gives, for people, where it hangs; one that is stopped writes none."""
        with self._numbered, contextlib.suppress(OSError):
            # Behind its name, which may have parentheses of its own.
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            if self.status is None and state in _STOPPED:
                return "it is stopped: SIGSTOP, or a debugger"
        self._signal(thread_stacks.SIGNAL)
        return "where it hangs is in its log"

    def kill(self) -> None:
        """End it at once; what it has started goes behind it."""
        self._signal(signal.SIGKILL)

    def wait(self, within_s: float = _FOREVER_S) -> int | None:
        """Wait for its end, and for that of its session. Gives its status; None: it has not ended within the time.

        Args:
            within_s: how long; negative: for ever.
        """
        return self._reap() if self._ends(within_s) else None

    def end(self, grace_s: float = 0.0) -> int | None:
        """Ask it to end, then make it, and wait. Gives its status.

        Args:
            grace_s: how long it may take; 0: it is not asked.
        """
        if grace_s:
            self.ask_to_end()
            self.wait(grace_s)
        self.kill()
        return self.wait()

    def descriptor(self) -> int | None:
        """A pidfd, which is the caller's to close; None: it was waited for already, or there is none."""
        with self._numbered, contextlib.suppress(OSError):
            if self.status is None:
                return os.pidfd_open(self.pid)
        return None

    def _ends(self, within_s: float) -> bool:
        descriptor = self.descriptor()
        if descriptor is not None:
            try:
                return is_readable(descriptor, within_s)
            finally:
                os.close(descriptor)
        until_ms = clock.monotonic_ms() + within_s * 1_000
        while not self.has_ended:
            if within_s >= 0 and until_ms <= clock.monotonic_ms():
                return False
            _nothing.wait(POLL_S)
        return True

    def _signal(self, number: int) -> None:
        with self._numbered, contextlib.suppress(ProcessLookupError):
            if self.status is None:
                os.kill(self.pid, number)

    def _signal_session(self, number: signal.Signals) -> None:
        with self._numbered, contextlib.suppress(ProcessLookupError, PermissionError):
            if self.status is None and self._leads_session:
                os.killpg(self.pid, number)

    def _reap(self) -> int:
        with self._reaping:
            if self.status is None:
                if self._leads_session:
                    # Before it is waited for: then its number is free.
                    _await_ends(_end_all_but_trackers(self.pid))
                    self._signal_session(signal.SIGKILL)
                with self._numbered:
                    self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self.status


def _end_all_but_trackers(leader: int) -> list[int]:
    """Kill what a child that has ended has left in its session: loader processes, helpers.

    But for multiprocessing's trackers: they take the semaphores and memory of those away that were killed, and end.

    Returns:
        A descriptor of each of them, which is to be closed.
    """
    try:
        present = os.listdir("/proc")  # noqa: PTH208 - of thousands, as fast as it gets
    except OSError:
        # No descriptor is left to look with.
        return []
    trackers = []
    for pid in map(int, filter(str.isdecimal, present)):
        # It is gone meanwhile, or there is no descriptor left: then it is killed with the others.
        with contextlib.suppress(OSError):
            if pid == leader or os.getsid(pid) != leader:
                continue
            descriptor = os.pidfd_open(pid)
            # What the descriptor is of may have come in the place of what was looked at.
            if os.getsid(pid) != leader:
                os.close(descriptor)
            elif _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                trackers.append(descriptor)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                os.close(descriptor)
    return trackers


def _await_ends(descriptors: Sequence[int]) -> None:
    until_ms = clock.monotonic_ms() + _TRACKER_MS
    for descriptor in descriptors:
        is_readable(descriptor, max(0, until_ms - clock.monotonic_ms()) / 1_000)
        os.close(descriptor)
