"""Child processes, from their begin to their end: the same for a launcher and for a worker proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from typing_extensions import override

from recovery import clock
from recovery.readable import is_readable

_PRE_EXEC = str(Path(__file__).with_name("pre_exec.py"))
_TRACKER = b"multiprocessing.resource_tracker"
_TRACKER_MS = 1_000
"""It takes milliseconds; one that is stopped is not waited for much longer than that."""
_POLL_S = 0.05
"""How often a child is polled where it has no descriptor: none is left, or the kernel knows none (before Linux 5.3)."""


def tied(command: Sequence[str], conditions: Mapping[str, Any] | None = None) -> list[str]:
    """The command behind a program that ties the child to this process, takes up its conditions, then becomes the command.

    Args:
        command: what the child is to run.
        conditions: that it runs under (recovery.process_conditions); what is not named is as in this process.
    """
    return [sys.executable, "-I", "-S", _PRE_EXEC, str(os.getpid()), json.dumps(conditions or {}), *command]


class Child:
    """A process in a session of its own, which the kernel ends with this one. It is waited for by its descriptor, without a thread."""

    def __init__(self, pid: int) -> None:
        """Wait for it from now on.

        Args:
            pid: of a child of this process, which leads its session.
        """
        self.pid = pid
        """Of the process, and of its session."""
        self._ended = asyncio.create_task(self._await_end())

    @property
    def has_ended(self) -> bool:
        """And was waited for, so that its number may be another process's by now."""
        return self._ended.done()

    def kill(self) -> None:
        """End it at once; what it has started goes behind it."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end. Gives its exit code; negative: the signal that killed it."""
        return await asyncio.shield(self._ended)

    async def _await_end(self) -> int:
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            while not has_ended(self.pid):  # noqa: ASYNC110 - nothing here could set an event
                await asyncio.sleep(_POLL_S)
        else:
            loop, gone = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        trackers = _end_all_but_trackers(self.pid)
        if trackers:
            try:
                await asyncio.to_thread(_await_ends, trackers)
            except RuntimeError:
                # No thread is left to wait in.
                _await_ends(trackers)
        signal_group(self.pid, signal.SIGKILL)
        return self._status()

    def _status(self) -> int:
        """Of its end, which the kernel gives once."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class SpawnedChild(Child):
    """One that starts its program by itself."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        conditions: Mapping[str, Any],
        log: IO[bytes] | int,
    ) -> None:
        """Start it.

        Args:
            command: what it runs.
            environment: all of it.
            conditions: that it runs under (recovery.process_conditions).
            log: where its output goes.

        Raises:
            OSError: it could not be started; nothing is left of it.
        """
        self._process = subprocess.Popen(  # noqa: S603 - the command of the person who started the job
            tied(command, conditions),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        super().__init__(self._process.pid)

    @override
    def _status(self) -> int:
        return self._process.wait()


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a child and everything it has started in its session; nothing when all of it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def has_ended(pid: int, *, wait: bool = False) -> bool:
    """Has a child ended? It is not waited for, so that its number stays its own.

    Args:
        pid: of the child.
        wait: block until it has.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)) is not None


def status_of(pid: int, *, within_s: float) -> int | None:
    """Give the exit code of a child (negative: the signal that killed it) as `has_ended`; None: it has not ended within the time."""
    # Without a descriptor it is not waited for.
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            is_readable(descriptor, within_s)
        finally:
            os.close(descriptor)
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def end_session(leader: int) -> None:
    """Kill what a child that has ended has left in its session: loader processes, helpers. Before it is waited for: then its number is free."""
    _await_ends(_end_all_but_trackers(leader))
    signal_group(leader, signal.SIGKILL)


def _end_all_but_trackers(leader: int) -> list[int]:
    """Kill what is in a session, but for multiprocessing's trackers: they take the semaphores and memory of those away that were killed, and end.

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


async def end(children: Sequence[Child], grace_s: float) -> None:
    """Ask children to end, kill what is left of them after the grace period, and wait for all.

    Args:
        children: whom, each with everything it has started.
        grace_s: seconds from SIGTERM to SIGKILL.
    """
    for child in children:
        if not child.has_ended:
            signal_group(child.pid, signal.SIGTERM)
    ended = [asyncio.create_task(child.wait()) for child in children]
    if ended:
        await asyncio.wait(ended, timeout=grace_s)
    for child in children:
        child.kill()
    await asyncio.gather(*ended)
