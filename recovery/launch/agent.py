"""Starts the processes of one host, watches them, starts again what died, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recovery import clock
from recovery.launch import kernel_log, output
from recovery.launch.done import BEFORE_END, Done
from recovery.launch.incidents import Failure, Incidents
from recovery.launch.placement import Kind, Placed, environment_of
from recovery.launch.reports import Report
from recovery.launch.restarts import SHORT_LIFE_MS, Decision, Ended, Next, decide, describe, exit_code_of
from recovery.worker.children import begin_child, signal_group

_GRACE_S = 5.0
"""From SIGTERM to SIGKILL: a worker's farewell takes less than a second."""
_GRACE_WITHOUT_RECOVERY_S = 0.3
"""Nobody comes back to such a job, so nobody needs a farewell."""
_SOON_MS = 60_000
"""A life shorter than this is soon over: an error that needs longer to show again may be another one."""


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
        report: Report,
    ) -> None:
        """Note what is to run; `run` does.

        Args:
            placed: the processes of this host.
            environment: the launcher's own.
            log_dir: where logs go.
            max_restarts: of one process within an hour.
            has_stepped: has any rank of the job ever applied a step?
            report: tells the scheduler how a process ended.
        """
        self._placed, self._environment, self._log_dir = placed, environment, log_dir
        self._max_restarts, self._has_stepped, self._report = max_restarts, has_stepped, report
        self.done: Done | None = None
        """Knows whether a worker that ended with 0 was done; None: every one was, there is no scheduler to ask."""
        self._recovery_enabled = environment.get("MS_ENABLE_RECOVERY") == "1"
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._incidents = Incidents(log_dir)
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

    # --- one process -----------------------------------------------------------------------------------------------------

    async def _keep(self, placed: Placed) -> None:
        """One process, over its lives."""
        relaunched_ms: list[int] = []
        short_lives = 0
        while True:
            begun_ms, start = clock.monotonic_ms(), len(relaunched_ms) + 1
            pid, status = await self._live(placed, start)
            ended_ms = clock.monotonic_ms()
            how = describe(status, kernels_word=kernel_log.word_on(pid) if status == -signal.SIGKILL else "")
            if status == 0 and not await self._was_done(placed):
                status, how = BEFORE_END, f"{how} before the end of training"
            lived_ms = ended_ms - begun_ms
            short_lives = short_lives + 1 if lived_ms < SHORT_LIFE_MS else 0
            decision = self._decide(placed, status, lived_ms, short_lives, relaunched_ms)
            gives_up = decision.next is Next.FAIL
            if placed.kind is Kind.WORKER:
                await self._report(placed.node_id, pid, how, gives_up=gives_up)
            if decision.next is Next.DONE:
                return
            failure = Failure(
                process=placed.name,
                rank=placed.rank,
                start=start,
                status=how,
                wall=output.now(),
                consequence=decision.reason,
                log=str(self._log_of(placed)),
            )
            kept = self._incidents.note(failure, begun_ms=begun_ms, ended_ms=ended_ms)
            output.say(f"{placed.name} start {start}: {how}; {decision.reason} ({kept})", style="bold red")
            if gives_up:
                self._fail(status)
                return
            await asyncio.sleep(decision.after_ms / 1000)
            relaunched_ms.append(clock.monotonic_ms())

    async def _live(self, placed: Placed, start: int) -> tuple[int, int]:
        """One life of a process. Gives its process id and its status."""
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
        signal_group(process.pid, signal.SIGKILL)  # what it may have left: loader processes, helpers
        del self._running[placed.name]
        return process.pid, status

    async def _was_done(self, placed: Placed) -> bool:
        """It ended with 0."""
        if self.done is None:
            return True
        if placed.kind is Kind.SCHEDULER:
            self.done.note_scheduler_done()
            return True
        return await self.done.is_done(placed.node_id, placed.name)

    def _decide(
        self, placed: Placed, status: int, lived_ms: int, short_lives: int, relaunched_ms: list[int]
    ) -> Decision:
        repeats = self._incidents.repeats(placed.name, self._log_of(placed)) and lived_ms < _SOON_MS
        return decide(
            Ended(
                status=status,
                recovery_enabled=self._recovery_enabled,
                has_stepped=status <= 0 or self._has_stepped(),
                repeats=repeats,
                short_lives=short_lives,
                relaunched_ms=tuple(relaunched_ms),
                max_restarts=self._max_restarts,
                now_ms=clock.monotonic_ms(),
            )
        )

    def _log_of(self, placed: Placed) -> Path:
        return self._log_dir / f"{placed.name}.log"

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int) -> None:
        """A process failed for good: the cause is shown last, where one looks first."""
        if self._exit_code is None:
            self._exit_code = exit_code_of(status)
        self._stopping.set()

    def _asked(self, number: int) -> None:
        """SIGTERM and SIGINT end the job; the second one at once."""
        if self._stopping.is_set():
            for process in self._running.values():
                signal_group(process.pid, signal.SIGKILL)
            return
        output.say(f"asked to stop by {signal.Signals(number).name}")
        self._exit_code = 128 + number
        self._stopping.set()

    async def _end_all(self) -> None:
        """Ask the workers to leave, then make them; the scheduler last, which tells other hosts."""
        grace_s = _GRACE_S if self._recovery_enabled else _GRACE_WITHOUT_RECOVERY_S
        scheduler = self._running.get("scheduler")
        workers = [process for process in self._running.values() if process is not scheduler]
        await _end(workers, grace_s)
        if scheduler is not None:
            await _end([scheduler], grace_s)

    def tell_the_cause(self) -> None:
        """Why the job failed: the first failure with its words, then what followed. Nothing after a success."""
        incident = self._incidents.newest
        if incident is None or not self._exit_code:
            return
        first = incident.first
        output.say(f"the job failed: {first.process} start {first.start}: {first.status}", style="bold red")
        for line in incident.words:
            output.say(f"    {line}")
        for failure in incident.followed:
            output.say(f"  it was followed by {failure.process} start {failure.start}: {failure.status}")
        output.say(f"  its log: {first.log}")


async def _end(processes: Sequence[asyncio.subprocess.Process], grace_s: float) -> None:
    for process in processes:
        signal_group(process.pid, signal.SIGTERM)
    left = [asyncio.create_task(process.wait()) for process in processes]
    if left:
        await asyncio.wait(left, timeout=grace_s)
    for process in processes:
        signal_group(process.pid, signal.SIGKILL)
    await asyncio.gather(*left)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def _begin(cpus: Sequence[int]) -> None:
    """In the child: it ends with the launcher, and runs where it was told to."""
    begin_child()
    if cpus:
        os.sched_setaffinity(0, cpus)
