"""Starts the processes of one host, watches them, starts again what died, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from recovery import clock
from recovery.errors import Cause, ExitBeforeEndError, LaunchFailedError, WorldFullError, cause_of
from recovery.launch import console, kernel_log
from recovery.launch.children import Child, end, signal_group
from recovery.launch.contact import POLL_S, Contact, LostNode, Overdue
from recovery.launch.done import Done
from recovery.launch.incidents import Failure, Incidents
from recovery.launch.placement import Kind, Placed, environment_of
from recovery.launch.restarts import SHORT_LIFE_MS, Decision, Ended, Next, decide, describe, exit_code_of

_GRACE_S = 5.0
"""From SIGTERM to SIGKILL: a worker's farewell takes less than a second."""
_GRACE_WITHOUT_RECOVERY_S = 0.3
"""Nobody comes back to such a job, so nobody needs a farewell."""
_SOON_MS = 60_000
"""A life shorter than this is soon over: an error that needs longer to show again may be another one."""

_PASSES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
"""A start that fails for want of these may succeed later."""


class _Life(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a process, over."""

    pid: int
    """0: it could not be started."""
    status: int
    """Exit code; negative: the signal that killed it."""
    cause: Cause | None
    """What the end says of the next start; None: nothing."""
    how: str
    """For people."""
    start: int
    """Which start it was, 1-based."""
    begun_ms: int
    ended_ms: int

    @property
    def lived_ms(self) -> int:
        return self.ended_ms - self.begun_ms


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
        contact: Contact,
    ) -> None:
        """Note what is to run; `run` does.

        Args:
            placed: the processes of this host.
            environment: the launcher's own.
            log_dir: where logs go.
            max_restarts: of one process within an hour.
            has_stepped: has any rank of the job ever applied a step?
            contact: with the scheduler.
        """
        self._placed, self._environment, self._log_dir = placed, environment, log_dir
        self._max_restarts, self._has_stepped, self._contact = max_restarts, has_stepped, contact
        self.done: Done | None = None
        """Knows whether a worker that ended with 0 was done; None: every one was, there is no scheduler to ask."""
        self._recovery_enabled = environment.get("MS_ENABLE_RECOVERY") == "1"
        self._running: dict[str, Child] = {}
        self._ended_by_us: dict[int, str] = {}
        """By process id: why this launcher ended a process whose job goes on."""
        self._unmarked: set[str] = set()
        """Whose log does not say where its newest life begins."""
        self._over: dict[str, Next] = {}
        """How each process was over for good without a failure of the job."""
        self._incidents = Incidents(log_dir)
        self._exit_code: int | None = None
        """Decided; None: the job goes on."""
        self._failed = False
        """A process failed for good, or this launcher did; else a person or a system ended the job."""
        self._stopping: asyncio.Event

    async def run(self) -> int:
        """Until every process is done, or one has failed, or a signal came. Gives the exit code."""
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked, number)
        keepers = [
            asyncio.create_task(self._guarded(placed.name, self._keep(placed))) for placed in self._placed
        ]
        stopped = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(self._guarded("its watch over lost nodes", self._watch()))
        everyone = asyncio.create_task(_all_of(keepers))
        await asyncio.wait({everyone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*keepers, stopped, watching):
            task.cancel()
        # Every keeper tells its own failure; what is left are cancellations.
        await asyncio.gather(*keepers, stopped, watching, everyone, return_exceptions=True)
        await self._end_all()
        return self._final_code()

    # --- one process -----------------------------------------------------------------------------------------------------

    async def _guarded(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong in this launcher itself fails the job by name: a keeper that ends in silence would look like success."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - see above
            console.say("".join(traceback.format_exception(error)).rstrip())
            self._complain(what, f"the launcher itself failed ({type(error).__name__}: {error})")
            self._fail(LaunchFailedError.exit_code)

    async def _keep(self, placed: Placed) -> None:
        """One process, over its lives."""
        relaunched_ms: list[int] = []
        short_lives, pid = 0, 0
        while True:
            life = await self._live(placed, len(relaunched_ms) + 1)
            pid = life.pid or pid
            if life.status == 0 and self.done is not None and not await self.done.was(placed):
                life = msgspec.structs.replace(
                    life,
                    status=ExitBeforeEndError.exit_code,
                    cause=ExitBeforeEndError.cause,
                    how=f"{life.how} before the end of training",
                )
            short_lives = short_lives + 1 if life.lived_ms < SHORT_LIFE_MS else 0
            decision = await self._decide(placed, life, short_lives, relaunched_ms)
            gives_up = decision.next is Next.FAIL
            if placed.kind is Kind.WORKER and (life.pid or gives_up):
                await self._contact.report(placed.node_id, pid, life.how, gives_up=gives_up)
            if decision.next in (Next.DONE, Next.SURPLUS):
                self._over[placed.name] = decision.next
                if decision.next is Next.SURPLUS:
                    console.say(f"{placed.name}: {life.how} (WORLD_FULL); {decision.reason}", style="yellow")
                return
            self._note(placed, life, decision)
            if gives_up:
                if life.status == LaunchFailedError.exit_code:
                    self._complain(placed.name, life.how)
                self._fail(life.status)
                return
            await asyncio.sleep(decision.after_ms / 1000)
            relaunched_ms.append(clock.monotonic_ms())

    async def _live(self, placed: Placed, start: int) -> _Life:
        """One life of a process, from its start to its end."""
        begun_ms = clock.monotonic_ms()
        try:
            child = self._begin(placed, start)
        except OSError as error:
            cause = Cause.TEMPORARY if error.errno in _PASSES else LaunchFailedError.cause
            return _Life(
                pid=0,
                status=LaunchFailedError.exit_code,
                cause=cause,
                how=f"could not be started ({error.strerror})",
                start=start,
                begun_ms=begun_ms,
                ended_ms=clock.monotonic_ms(),
            )
        pid = child.pid
        console.say(f"started {placed.name} (pid {pid}, start {start}), log: {self._log_of(placed)}")
        self._running[placed.name] = child
        status = await child.wait()
        signal_group(pid, signal.SIGKILL)  # what it may have left: loader processes, helpers
        del self._running[placed.name]
        how = describe(status, kernels_word=kernel_log.word_on(pid) if status == -signal.SIGKILL else "")
        if pid in self._ended_by_us:  # whatever it said by its exit code answers our own signal
            status, how = -signal.SIGKILL, self._ended_by_us.pop(pid)
        return _Life(
            pid=pid,
            status=status,
            cause=cause_of(status),
            how=how,
            start=start,
            begun_ms=begun_ms,
            ended_ms=clock.monotonic_ms(),
        )

    def _begin(self, placed: Placed, start: int) -> Child:
        """Start it.

        Raises:
            OSError: it could not be started.
        """
        with self._open_log(placed, start) as log:
            environment = environment_of(placed, self._environment, restarts=start - 1)
            return Child(placed.command, environment=environment, cpus=placed.cpus, log=log)

    def _open_log(self, placed: Placed, start: int) -> IO[bytes]:
        """Its log at its end; where that cannot be written its output is lost, and it runs all the same."""
        path = self._log_of(placed)
        self._unmarked.discard(placed.name)
        try:
            return console.open_log(path, start=start)
        except OSError as error:
            self._unmarked.add(placed.name)
            console.say(f"{path} cannot be written ({error.strerror})", style="yellow")
        try:
            return path.open("ab", buffering=0)
        except OSError:
            return open(os.devnull, "ab", buffering=0)  # noqa: PTH123 - it is no file of a directory

    async def _decide(
        self, placed: Placed, life: _Life, short_lives: int, relaunched_ms: list[int]
    ) -> Decision:
        soon = life.lived_ms < _SOON_MS
        says_words = life.pid != 0 and placed.name not in self._unmarked
        repeats = says_words and self._incidents.repeats(placed.name, self._log_of(placed)) and soon
        refused = life.status == WorldFullError.exit_code
        return decide(
            Ended(
                status=life.status,
                cause=life.cause,
                was_member=refused and await self._contact.was_member(placed.node_id, life.pid),
                first=life.start == 1 and soon,
                recovery_enabled=self._recovery_enabled,
                has_stepped=life.status <= 0 or self._has_stepped(),
                repeats=repeats,
                short_lives=short_lives,
                relaunched_ms=tuple(relaunched_ms),
                max_restarts=self._max_restarts,
                now_ms=clock.monotonic_ms(),
            )
        )

    def _note(self, placed: Placed, life: _Life, decision: Decision) -> None:
        """Keep a failure as an incident, and tell it."""
        failure = Failure(
            process=placed.name,
            rank=placed.rank,
            start=life.start,
            status=life.how,
            wall=console.now(),
            consequence=decision.reason,
            log=str(self._log_of(placed)),
        )
        kept = self._incidents.note(failure, begun_ms=life.begun_ms, ended_ms=life.ended_ms)
        console.say(
            f"{placed.name} start {life.start}: {life.how}; {decision.reason} ({kept})", style="bold red"
        )

    def _log_of(self, placed: Placed) -> Path:
        return self._log_dir / f"{placed.name}.log"

    # --- lost nodes ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End processes that hang: their nodes are lost, they do not come back, and nothing of them can notice it."""
        overdue = Overdue()
        while self._recovery_enabled:
            await asyncio.sleep(POLL_S)
            answer = await self._contact.lost_nodes()
            if answer is not None and self.done is not None:
                self.done.note_job(answer.job)
            lost = overdue.note(answer, clock.monotonic_ms())
            await asyncio.gather(*(self._end_lost(node) for node in lost))

    async def _end_lost(self, node: LostNode) -> None:
        """Its own process only: a younger one of the same id has another process id."""
        name = next((placed.name for placed in self._placed if placed.node_id == node.node_id), "")
        child = self._running.get(name)
        if child is None or child.pid != node.pid:
            return
        self._ended_by_us[child.pid] = f"ended by its launcher: its node was lost: {node.reason}"
        console.say(f"{name} (pid {child.pid}) is lost and hangs: {node.reason}; ending it", style="yellow")
        await end([child], _GRACE_S)

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int) -> None:
        """A process failed for good: the cause is shown last, where one looks first."""
        if self._exit_code is None:
            self._exit_code, self._failed = exit_code_of(status), True
        self._stopping.set()

    def _complain(self, process: str, reason: str) -> None:
        next_step = f"Look at {self._log_dir}, mend what it says, and start the launcher again."
        error = LaunchFailedError(process=process, reason=reason, next_step=next_step)
        console.say(str(error), style="bold red")

    def _final_code(self) -> int:
        """0 only when every process of this host was done, or was not needed beside one that was."""
        if self._exit_code is not None:
            return self._exit_code
        unfinished = [placed.name for placed in self._placed if placed.name not in self._over]
        if unfinished:
            self._complain(", ".join(unfinished), "its keeper ended without its being done")
            return LaunchFailedError.exit_code
        surplus = [name for name, how in self._over.items() if how is Next.SURPLUS]
        if surplus:
            said = "the job's workers were complete without: "
            console.say(said + ", ".join(surplus), style="yellow")
        return WorldFullError.exit_code if len(surplus) == len(self._placed) else 0

    def _asked(self, number: int) -> None:
        """SIGTERM and SIGINT end the job; the second one at once."""
        if self._stopping.is_set():
            for process in self._running.values():
                signal_group(process.pid, signal.SIGKILL)
            return
        console.say(f"asked to stop by {signal.Signals(number).name}")
        self._exit_code = 128 + number
        self._stopping.set()

    async def _end_all(self) -> None:
        """Ask the workers to leave, then make them; the scheduler last, which tells other hosts."""
        grace_s = _GRACE_S if self._recovery_enabled else _GRACE_WITHOUT_RECOVERY_S
        scheduler = self._running.get("scheduler")
        workers = [process for process in self._running.values() if process is not scheduler]
        await end(workers, grace_s)
        if scheduler is not None:
            await end([scheduler], grace_s)

    def tell_the_cause(self) -> None:
        """Why the job failed: the first failure with its words, then what followed. Nothing where it did not fail."""
        incident = self._incidents.newest
        if incident is None or not self._failed:
            return
        first = incident.first
        console.say(f"the job failed: {first.process} start {first.start}: {first.status}", style="bold red")
        for line in incident.words:
            console.say(f"    {line}")
        for failure in incident.followed:
            console.say(f"  it was followed by {failure.process} start {failure.start}: {failure.status}")
        console.say(f"  its log: {first.log}")


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)
