"""Keeps all processes of one host running until the job ends, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Coroutine, Sequence
from typing import Any

from recovery import clock
from recovery.errors import LaunchFailedError, WorldFullError
from recovery.launch import console
from recovery.launch.children import end, signal_group
from recovery.launch.ended_nodes import reports_of
from recovery.launch.incidents import Incidents
from recovery.launch.overdue import LostNode, Overdue
from recovery.launch.placement import Kind, Placed
from recovery.launch.process_keeper import GRACE_S, LaunchContext, ProcessKeeper
from recovery.launch.restarts import Next, exit_code_of

_POLL_S = 1.0
"""How often the scheduler is asked for its lost nodes."""
_GRACE_WITHOUT_RECOVERY_S = 0.3
"""From SIGTERM to SIGKILL: nobody comes back to such a job, so a clean shutdown is worth no wait."""


class Agent:
    """One per launcher."""

    def __init__(self, placed: Sequence[Placed], context: LaunchContext) -> None:
        """Note what is to run; `run` does.

        Args:
            placed: the processes of this host.
            context: what they share.
        """
        self._context = context
        self._incidents = Incidents(context.log_dir)
        self._keepers = [ProcessKeeper(one, context, self._incidents) for one in placed]
        self._over: dict[str, Next] = {}
        """How each process was over for good without a failure of the job, by name."""
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
            loop.add_signal_handler(number, self._stop_by_signal, number)
        keeping = [
            asyncio.create_task(self._guarded(keeper.placed.name, self._keep(keeper)))
            for keeper in self._keepers
        ]
        stopped = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(self._guarded("its watch over lost nodes", self._watch()))
        everyone = asyncio.create_task(_all_of(keeping))
        await asyncio.wait({everyone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*keeping, stopped, watching):
            task.cancel()
        # Every task reports its own failure; what is left are cancellations.
        await asyncio.gather(*keeping, stopped, watching, everyone, return_exceptions=True)
        await self._end_all()
        return self._final_code()

    def show_cause(self) -> None:
        """Why the job failed: the first failure with its last lines, then what followed. Nothing where it did not fail."""
        incident = self._incidents.newest
        if incident is None or not self._failed:
            return
        first = incident.first
        console.say(f"the job failed: {first.process} start {first.start}: {first.status}", style="bold red")
        for line in incident.shown_lines:
            console.say(f"    {line}")
        for failure in incident.followed:
            console.say(f"  it was followed by {failure.process} start {failure.start}: {failure.status}")
        console.say(f"  its log: {first.log}")

    # --- while the job goes on -------------------------------------------------------------------------------------------

    async def _guarded(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong in this launcher itself fails the job by name: a task that ends in silence would look like success."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - see above
            console.say("".join(traceback.format_exception(error)).rstrip())
            self._report_failure(what, f"the launcher itself failed ({type(error).__name__}: {error})")
            self._fail(LaunchFailedError.exit_code)

    async def _keep(self, keeper: ProcessKeeper) -> None:
        outcome = await keeper.keep()
        if outcome.next is not Next.FAIL:
            self._over[keeper.placed.name] = outcome.next
            return
        if outcome.status == LaunchFailedError.exit_code:
            self._report_failure(keeper.placed.name, outcome.how)
        self._fail(outcome.status)

    async def _watch(self) -> None:
        """End processes that hang: their nodes are lost, they do not come back, and nothing of them can notice it."""
        overdue, completion = Overdue(), self._context.completion
        while self._context.recovery_enabled:
            await asyncio.sleep(_POLL_S)
            answer = await self._context.contact.lost_nodes()
            if answer is not None and completion is not None:
                completion.note_job(answer.job)
            if answer is not None:
                await self._context.contact.tell(reports_of(answer.silent))
            lost = overdue.note(answer, clock.monotonic_ms())
            await asyncio.gather(*(self._end_lost(node) for node in lost))

    async def _end_lost(self, node: LostNode) -> None:
        for keeper in self._keepers:
            if keeper.placed.node_id == node.node_id:
                await keeper.end_lost(node)

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int) -> None:
        """A process failed for good: the first one decides the exit code."""
        if self._exit_code is None:
            self._exit_code, self._failed = exit_code_of(status), True
        self._stopping.set()

    def _report_failure(self, process: str, reason: str) -> None:
        next_step = f"Look at {self._context.log_dir}, fix what it names, and start the launcher again."
        error = LaunchFailedError(process=process, reason=reason, next_step=next_step)
        console.say(str(error), style="bold red")

    def _stop_by_signal(self, number: int) -> None:
        """SIGTERM and SIGINT end the job; the second one at once."""
        if self._stopping.is_set():
            for keeper in self._keepers:
                if keeper.child is not None:
                    signal_group(keeper.child.pid, signal.SIGKILL)
            return
        console.say(f"asked to stop by {signal.Signals(number).name}")
        self._exit_code = 128 + number
        self._stopping.set()

    async def _end_all(self) -> None:
        """Ask the workers to leave, then make them; the scheduler last, which informs other hosts."""
        grace_s = GRACE_S if self._context.recovery_enabled else _GRACE_WITHOUT_RECOVERY_S
        for kind in (Kind.WORKER, Kind.SCHEDULER):
            running = [
                keeper.child
                for keeper in self._keepers
                if keeper.child is not None and keeper.placed.kind is kind
            ]
            await end(running, grace_s)

    def _final_code(self) -> int:
        """0 only when every process of this host was done, or was not needed beside one that was."""
        if self._exit_code is not None:
            return self._exit_code
        names = [keeper.placed.name for keeper in self._keepers]
        unfinished = [name for name in names if name not in self._over]
        if unfinished:
            self._report_failure(", ".join(unfinished), "its keeper ended without its being done")
            return LaunchFailedError.exit_code
        surplus = [name for name, how in self._over.items() if how is Next.SURPLUS]
        if surplus:
            said = "the job's workers were complete without: "
            console.say(said + ", ".join(surplus), style="yellow")
        return WorldFullError.exit_code if len(surplus) == len(names) else 0


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)
