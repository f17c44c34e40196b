"""A job of some system that runs, is killed rank by rank, and is watched from outside: by the lines that its ranks write."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from processes import PATIENCE_S, Processes, started
from rank_log import RankLog, Recovery
from systems import LOG, System

STEPS_BETWEEN_KILLS = (30, 60)
QUIET_S, QUIET_CPU_S = 2.0, 0.05
"""A process that has used less than so much processor time for so long has nothing left to prepare: it waits."""


class KilledJob:
    """One job. `killed` and `recoveries` are in the order of the kills."""

    def __init__(self, system: System, processes: Processes, workers: int, seed: int) -> None:
        self.recoveries: list[Recovery] = []
        self.killed: list[int] = []
        """Process ids."""
        self.log = RankLog(processes.place / LOG)
        self._system, self._processes, self._workers = system, processes, workers
        self._chosen = random.Random(seed)
        # The rank whose program is the oldest is next: a launcher may make those wait that end soon after their start.
        self._order = self._chosen.sample(range(workers), workers)
        self._busy: dict[int, tuple[float, float]] = {}
        """Of a process: when it was last seen at work, and the processor time that it had used by then."""
        self._begun_ms = time.time() * 1000
        self._stepping_since_ms = self._begun_ms

    def begin(self) -> float:
        """Start the job and wait for the first step of all. Gives how long that took, in ms.

        Raises:
            GoneError: it did not come.
        """
        self._begun_ms = time.time() * 1000
        self._system.start(self._processes, self._workers)
        self._stepping_since_ms = self.wait(partial(self.log.first_of_all, self._workers))
        return self._stepping_since_ms - self._begun_ms

    def kill_one(self) -> Recovery:
        """Let it train a while, kill the next rank, wait until all have stepped again.

        Raises:
            GoneError: they did not.
        """
        self.wait_for_steps(self._chosen.randint(*STEPS_BETWEEN_KILLS))
        self.wait_for_standbys()
        return self.kill_now()

    def kill_now(self) -> Recovery:
        """Kill the next rank at once; else as kill_one."""
        rank = self._order.pop(0)
        self._order.append(rank)
        pid = self.log.pids[rank]
        killed_ms = time.time() * 1000
        os.kill(pid, signal.SIGKILL)
        self.killed.append(pid)
        self._system.relaunch(self._processes, self._workers, rank)
        recovery: Recovery = self.wait(partial(self.log.recovery, rank, pid, killed_ms, self._workers))
        self._stepping_since_ms = recovery.done_ms
        self.recoveries.append(recovery)
        return recovery

    def wait_for_standbys(self) -> list[int]:
        """Wait until as many processes wait for a rank as the system has standbys; gives their process ids.

        Raises:
            GoneError: they did not come.
        """
        self.wait(lambda: len(self._waiting()) >= self._system.standbys)
        return self._waiting()

    def wait_for_steps(self, count: int) -> None:
        """Wait until all ranks have applied so many steps since the last recovery, or since the first step.

        Raises:
            GoneError: they did not.
        """
        self.wait(lambda: self.log.steps_since(self._stepping_since_ms) >= count)

    def wait_for_more_steps(self, count: int) -> None:
        """Wait until all ranks have applied so many steps from now on.

        Raises:
            GoneError: they did not.
        """
        target = self.common_step() + count
        self.wait(lambda: self.common_step() >= target)

    def train_until(self, moment_s: float) -> None:
        """Let it train until a moment of the monotonic clock.

        Raises:
            GoneError: its leader ended.
        """
        while (now := time.monotonic()) < moment_s:
            self.wait(partial(self._has_come, min(moment_s, now + PATIENCE_S / 2)))

    def _has_come(self, moment_s: float) -> bool:
        self.log.look()
        return time.monotonic() >= moment_s

    def common_step(self) -> int:
        """The newest step that the newest program of every rank has applied."""
        self.log.look()
        return min(self.log.reached[pid] for pid in self.log.pids.values())

    def _waiting(self) -> list[int]:
        """Programs that have made their imports, hold no rank, live, and do nothing."""
        self.log.look()
        entered = {mark.pid for mark in self.log.marks if mark.name == "entered"}
        return [pid for pid in entered - self.log.reached.keys() if self._is_quiet(pid)]

    def _is_quiet(self, pid: int) -> bool:
        used_s, now = processor_s(pid), time.monotonic()
        if used_s is None:
            return False
        busy_at, used_then_s = self._busy.setdefault(pid, (now, used_s))
        if used_s - used_then_s > QUIET_CPU_S:
            self._busy[pid] = (now, used_s)
            return False
        return now - busy_at >= QUIET_S

    def wait(self, until: Callable[[], Any]) -> Any:
        """Wait while the leader lives."""
        return self._processes.wait(until, alive=self._system.leader)

    def tails(self) -> str:
        """What the processes have written last."""
        return self._processes.tails()

    @property
    def leader_pid(self) -> int:
        """Of the process that started all others."""
        return self._processes.last[self._system.leader].pid

    @property
    def recovery_path(self) -> Path:
        """Where this engine keeps its events."""
        return self._processes.place / "recovery"


def processor_s(pid: int) -> float | None:
    """Processor time that a process has used; None: it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            times = process.cpu_times()
            return float(times.user + times.system)
    return None


@contextmanager
def job_of(system: System, workers: int, *, seed: int = 1) -> Iterator[KilledJob]:
    """A job that is not begun yet; nothing of it outlives the `with`."""
    with started(**dict(system.environment)) as processes:
        yield KilledJob(system, processes, workers, seed)
