"""Starts the processes of one host, watches them, starts again what died, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recovery import clock
from recovery.launch import output
from recovery.launch.placement import Placed, environment_of
from recovery.launch.restarts import Ended, Next, decide, describe, exit_code_of

_GRACE_S = 5.0
"""From SIGTERM to SIGKILL: a worker's farewell takes less than a second."""
_GRACE_WITHOUT_RECOVERY_S = 0.3
"""Nobody comes back to such a job, so nobody needs a farewell."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)


class Agent:
    """One per launcher."""

    def __init__(
        self,
        placed: Sequence[Placed],
        *,
        environment: Mapping[str, str],
        log_dir: Path,
        max_restarts: int,
        has_stepped: Callable[[], bool],
    ) -> None:
        """Note what is to run; `run` does.

        Args:
            placed: the processes of this host.
            environment: the launcher's own.
            log_dir: where logs go.
            max_restarts: of one process within an hour.
            has_stepped: has any rank of the job ever applied a step?
        """
        self._placed, self._environment, self._log_dir = placed, environment, log_dir
        self._max_restarts, self._has_stepped = max_restarts, has_stepped
        self._recovery_enabled = environment.get("MS_ENABLE_RECOVERY") == "1"
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._exit_code: int | None = None
        """Decided; None: the job goes on."""
        self._stopping: asyncio.Event

    async def run(self) -> int:
        """Until every process is done, or one has failed, or a signal came. Gives the exit code."""
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked, number)
        keepers = [asyncio.create_task(self._keep(placed)) for placed in self._placed]
        stopped = asyncio.create_task(self._stopping.wait())
        everyone = asyncio.create_task(_all_of(keepers))
        await asyncio.wait({everyone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for keeper in keepers:
            keeper.cancel()
        stopped.cancel()
        await asyncio.gather(*keepers, stopped, everyone, return_exceptions=True)
        await self._end_all()
        return self._exit_code or 0

    async def _keep(self, placed: Placed) -> None:
        """One process, over its lives."""
        relaunched_ms: list[int] = []
        while True:
            start = len(relaunched_ms) + 1
            status = await self._live(placed, start)
            decision = decide(
                Ended(
                    status=status,
                    recovery_enabled=self._recovery_enabled,
                    has_stepped=status <= 0 or self._has_stepped(),
                    relaunched_ms=tuple(relaunched_ms),
                    max_restarts=self._max_restarts,
                    now_ms=clock.monotonic_ms(),
                )
            )
            if decision.next is Next.DONE:
                return
            self._tell(placed, start, status, decision.reason)
            if decision.next is Next.FAIL:
                self._fail(exit_code_of(status))
                return
            await asyncio.sleep(decision.after_ms / 1000)
            relaunched_ms.append(clock.monotonic_ms())

    async def _live(self, placed: Placed, start: int) -> int:
        """One life of a process. Gives its status."""
        path = self._log_of(placed)
        with output.open_log(path, start=start) as log:
            process = await asyncio.create_subprocess_exec(
                *placed.command,
                env=environment_of(placed, self._environment, restarts=start - 1),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _begin(placed.cpus),
            )
        output.say(f"started {placed.name} (pid {process.pid}, start {start}), log: {path}")
        self._running[placed.name] = process
        status = await process.wait()
        _signal_group(process.pid, signal.SIGKILL)  # what it may have left: loader processes, helpers
        del self._running[placed.name]
        return status

    def _tell(self, placed: Placed, start: int, status: int, consequence: str) -> None:
        """Keep the incident and show it: what died, why, its last words."""
        found = output.incident(
            self._log_of(placed), start=start, status=describe(status), consequence=consequence
        )
        kept = output.keep(found, self._log_dir)
        output.say(f"{placed.name} start {start}: {found.status}; {consequence} ({kept})")
        if self._exit_code is None:
            for line in found.traceback or found.last_lines[-5:]:
                output.say(f"    {line}")

    def _fail(self, exit_code: int) -> None:
        """The first failure decides the launcher's exit code."""
        if self._exit_code is None:
            self._exit_code = exit_code
        self._stopping.set()

    def _asked(self, number: int) -> None:
        """SIGTERM and SIGINT end the job; the second one at once."""
        if self._stopping.is_set():
            for process in self._running.values():
                _signal_group(process.pid, signal.SIGKILL)
            return
        output.say(f"asked to stop by {signal.Signals(number).name}")
        self._fail(128 + number)

    async def _end_all(self) -> None:
        """Ask everyone to leave, then make them."""
        processes = list(self._running.values())
        for process in processes:
            _signal_group(process.pid, signal.SIGTERM)
        left = [asyncio.create_task(process.wait()) for process in processes]
        if left:
            await asyncio.wait(
                left, timeout=_GRACE_S if self._recovery_enabled else _GRACE_WITHOUT_RECOVERY_S
            )
        for process in processes:
            _signal_group(process.pid, signal.SIGKILL)
        await asyncio.gather(*left)

    def _log_of(self, placed: Placed) -> Path:
        return self._log_dir / f"{placed.name}.log"


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def _begin(cpus: Sequence[int]) -> None:
    """In the child: the kernel kills it when the launcher dies, however that dies; it runs where it was told to."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if cpus:
        os.sched_setaffinity(0, cpus)
