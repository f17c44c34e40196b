"""Processes that a launcher did not begin and that became its children: orphans of the job's processes, since it takes those in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from recovery.launch import console
from recovery.launch.child_process import ChildProcess
from recovery.process_conditions import take_in_orphans

_GRACE_S = 5.0
"""From SIGTERM to SIGKILL, as the job's processes have them."""
_ROUNDS_MAX = 100
"""A process that is killed leaves orphans of its own; no job was seen to nest them deeper than three."""
_ROUND_S = 0.02
_ENDING_S = 0.2
"""What was killed with its session has ended by then, and is no stray."""


class OrphanReaper:
    """Reaps them while the job goes on, and ends those that are left at its end.

    A process of this launcher's own session (a helper of a library) is never one: the code that began it waits for it. Nor is a child that
    was there before.
    """

    def __init__(self) -> None:
        """There are none yet."""
        self._own: list[ChildProcess] = []
        self._kept: set[int] = set()
        self._killed_sessions: set[int] = set()
        self._undecided = 0
        self._before: frozenset[int] = frozenset()
        self._is_blind = False
        """It could not look once, which was said."""

    def start(self) -> None:
        """Before the job's first process: take in orphans. A process that is a child of this one already is not of the job."""
        take_in_orphans()
        # A shell that became this launcher by exec leaves its children to it. Nobody waits for them, so their numbers stay theirs.
        self._before = frozenset(self._children())

    def own(self, child: ChildProcess) -> ChildProcess:
        """Gives the child, which is none."""
        self._own = [*(process for process in self._own if process.status is None), child]
        return child

    def keep(self, pid: int) -> None:
        """A process that is none, until `forget`."""
        self._kept.add(pid)

    def forget(self, pid: int) -> None:
        """It was killed with its session, and was waited for."""
        self._kept.discard(pid)
        self._killed_sessions.add(pid)

    @contextlib.contextmanager
    def undecided(self) -> Iterator[None]:
        """While a process begins that becomes a child before anybody knows its number, nobody is reaped."""
        self._undecided += 1
        try:
            yield
        finally:
            self._undecided -= 1

    def reap(self) -> None:
        """Wait for those that have ended, so that they do not stay as zombies."""
        if self._undecided:
            return
        for pid in self._present():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    async def end(self) -> None:
        """Ask those that are left to end, and theirs, then kill them; whom this launcher may not signal is named, and left."""
        self._undecided = 0
        await self._until_none(_ENDING_S)
        if not self._present():
            return
        left = [pid for pid in self._present() if _session_of(pid) not in self._killed_sessions]
        if left:
            names = ", ".join(f"{_name_of(pid)} (pid {pid})" for pid in left)
            console.say(f"ending what the job's processes have left: {names}", style="yellow")
        asked: set[int] = set()
        for _ in range(round(_GRACE_S / _ROUND_S)):
            for pid in set(self._present()) - asked:
                self._signal(pid, signal.SIGTERM)
                asked.add(pid)
            await self._until_none(_ROUND_S)
            if not self._present():
                return
        for _ in range(_ROUNDS_MAX):
            for pid in self._present():
                self._signal(pid, signal.SIGKILL)
            await self._until_none(_ROUND_S)
            if not self._present():
                return

    def _signal(self, pid: int, number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            console.say(f"{_name_of(pid)} (pid {pid}) cannot be ended: it is another user's", style="yellow")
            self.keep(pid)

    async def _until_none(self, within_s: float) -> None:
        for _ in range(max(1, round(within_s / _ROUND_S))):
            self.reap()
            if not self._present():
                return
            await asyncio.sleep(_ROUND_S)

    def _children(self) -> list[int]:
        """Of this process; none while it has no descriptor left to look with."""
        try:
            return _children()
        except OSError as error:
            if not self._is_blind:
                console.say(
                    f"what processes leave behind is not looked for ({error.strerror}); it is tried again",
                    style="yellow",
                )
            self._is_blind = True
            return []

    def _present(self) -> list[int]:
        own = {child.pid for child in self._own if child.status is None} | self._kept | self._before
        session = os.getsid(0)
        return [pid for pid in self._children() if pid not in own and _session_of(pid) != session]


def _children() -> list[int]:
    """Of all threads of this process; none where the kernel does not tell. Raises OSError where it cannot look."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread that has ended meanwhile, a kernel that does not tell.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text(encoding="utf-8").split())
    return found


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        # It is gone: of no session that matters.
        return os.getsid(0)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "a process"
