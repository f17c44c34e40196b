"""Keeps all processes of one host running until the job ends, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from recovery import clock, process_identity
from recovery.core.ids import NodeId
from recovery.core.messages import Exited
from recovery.errors import ROWS, LaunchFailedError
from recovery.job_line import Start
from recovery.launch import console
from recovery.launch.children import await_end, end
from recovery.launch.hung_nodes import HungNodes, LostNode, reports_of
from recovery.launch.incidents import Incidents
from recovery.launch.job_view import trains_here
from recovery.launch.launch_context import LaunchContext
from recovery.launch.notices import Notices
from recovery.launch.placement import Placed, ProcessKind
from recovery.launch.process_supervisor import GRACE_S, ProcessKeeper
from recovery.launch.restart_policy import Next, exit_code_of
from recovery.launch.scheduler_contact import save_last
from recovery.launch.takeover_processes import RankTakers

_POLL_S = 1.0
"""How often the scheduler is asked for its lost nodes, and this host is looked at for what was left behind."""
_MEMBERS_EVERY = 5
"""In how many of these questions it is asked for its members too, while not all processes of this host are known as such."""
_LEFT_OVER_MS = 5_000
"""How long after the end of the job a process that it never let in may take to notice it."""
_GRACE_WITHOUT_RECOVERY_S = 0.3
"""From SIGTERM to SIGKILL behind a failure: nobody comes back to such a job, so a clean shutdown is worth no wait."""
_MAY_BE_IGNORED = {signal.SIGHUP, signal.SIGQUIT}
"""nohup, and a shell that starts something in the background, ignore them, and mean it."""
_FINISHED = "the job has finished meanwhile: it goes on with a later end and --continue only"
_FINISHED_BY_STORE = "the job has finished: it goes on with a later end and --continue only"
"""Not "meanwhile": a run that never began leaves the end of the one before in the store."""
_NOT_KNOWN = ", unless the job has finished since, which is not known here: its scheduler does not answer"


class Agent:
    """One per launcher."""

    def __init__(self, placed: Sequence[Placed], context: LaunchContext) -> None:
        """Note what is to run; `run` does."""
        self._context = context
        self._incidents = Incidents(context.log_dir)
        self._keepers = [ProcessKeeper(process, context, self._incidents) for process in placed]
        self._keeping: list[asyncio.Task[None]] = []
        """One task per keeper."""
        takeover = context.takeover
        self._takers = (
            RankTakers(takeover.after_ms, context.contact, takeover.place, self._add) if takeover else None
        )
        self._over: dict[str, Next] = {}
        """How each process was over for good without a failure of the job, by name."""
        self._finished_ms = 0
        """When it was first seen that the job has finished; 0: it has not."""
        self._exit_code: int | None = None
        """Decided; None: the job goes on."""
        self._failed = False
        """A process failed for good, or this launcher did; else a person or a system ended the job."""
        self._asked_by = ""
        """The signal by which a person or a system has asked for the end; empty: nobody has."""
        self._asked_ms = 0
        """When that was, on the monotonic clock."""
        self._stop_grace_s = context.stop_grace_s
        """How long the end may take from then on."""
        self._is_leaving = self._is_told = False
        """The ranks of this host are handed over, and the job goes on without it."""
        self._stopping: asyncio.Event
        self._at_once: asyncio.Event
        """Set when it was asked for again."""

    async def run(self) -> int:
        """Until every process is done, or one has failed, or a signal came. Gives the exit code."""
        self._stopping, self._at_once = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        ignored = {each for each in _MAY_BE_IGNORED if signal.getsignal(each) is signal.SIG_IGN}
        asking = {signal.SIGTERM, signal.SIGINT, *_MAY_BE_IGNORED, *self._context.signals_to_handle}
        for number in asking - ignored:
            loop.add_signal_handler(number, self._stop_by_signal, number)
        self._context.beginner.start()
        for keeper in self._keepers:
            self._begin(keeper)
        stopped = asyncio.create_task(self._stopping.wait())
        watch = partial(self._watch, HungNodes(), itertools.count())
        looks: dict[str, Callable[[], Awaitable[None]]]
        looks = {"which nodes are lost": watch, "what processes have left behind": self._look}
        if self._context.notices is not None:
            looks["whether this host stays"] = partial(self._look_for_notice, self._context.notices)
        beside = [asyncio.create_task(self._look_again(what, look)) for what, look in looks.items()]
        everyone = asyncio.create_task(self._all_over())
        await asyncio.wait({everyone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for each in beside:
            each.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for task in (*self._keeping, stopped):
            task.cancel()
        # Every task reports its own failure; what is left are cancellations.
        await asyncio.gather(*self._keeping, stopped, everyone, return_exceptions=True)
        saved = await self._save_last()
        await self._end_workers()
        # A scheduler that is there takes them in milliseconds.
        await asyncio.gather(*(keeper.reported(within_s=1.0) for keeper in self._keepers))
        completion = self._context.completion
        # While the scheduler is there.
        is_known = await completion.refresh() if saved and completion is not None else False
        await self._end_scheduler()
        if saved:
            console.say(await self._what_became_of(saved, is_known=is_known))
        return self._final_code()

    def starts(self) -> dict[str, Start]:
        """How the workers and standbys of this host were begun, by the first node id of their slot."""
        return {
            keeper.placed.node_id: keeper.start
            for keeper in self._keepers
            if keeper.placed.kind is not ProcessKind.SCHEDULER
        }

    def show_cause(self, flags: Mapping[str, str]) -> None:
        """Why the job failed. Nothing where it did not fail."""
        if self._failed:
            self._incidents.show_cause(flags)

    # --- while the job goes on -------------------------------------------------------------------------------------------

    def _add(self, placed: Placed) -> ProcessKeeper:
        """One more process."""
        keeper = ProcessKeeper(placed, self._context, self._incidents)
        self._keepers.append(keeper)
        self._begin(keeper)
        return keeper

    def _begin(self, keeper: ProcessKeeper) -> None:
        self._over.pop(keeper.placed.name, None)
        self._keeping.append(asyncio.create_task(self._guarded(keeper.placed.name, self._keep(keeper))))

    async def _all_over(self) -> None:
        """Until no keeper has anything left to do, those that are added meanwhile included."""
        while running := [task for task in self._keeping if not task.done()]:
            await asyncio.wait(running)

    async def _guarded(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong in this launcher itself fails the job by name: a task that ends in silence would look like success."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - see above
            console.say("".join(traceback.format_exception(error)).rstrip())
            self._report_failure(what, f"the launcher itself failed ({type(error).__name__}: {error})")
            self._fail(ROWS["LAUNCH_FAILED"].exit_code)

    async def _keep(self, keeper: ProcessKeeper) -> None:
        outcome = await keeper.keep()
        if outcome.next is not Next.FAIL:
            self._over[keeper.placed.name] = outcome.next
            if outcome.next is Next.FAIL_LATE:
                self._decide_code(outcome.status)
            return
        if outcome.status == ROWS["LAUNCH_FAILED"].exit_code:
            self._report_failure(keeper.placed.name, outcome.how)
        self._fail(outcome.status)

    async def _look_again(self, what: str, look: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled. What only looks ends no job, whatever goes wrong: that is said, and it looks again."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await look()
            except Exception as error:  # noqa: BLE001 - see above
                console.say_unknown(what, error)

    async def _watch(self, overdue: HungNodes, polls: Iterator[int]) -> None:
        """End processes that hang: their nodes are lost, they do not come back, and nothing of them can notice it."""
        completion, context = self._context.completion, self._context
        if not context.recovery_enabled:
            return
        poll = next(polls)
        if self._takers is not None and not self._is_leaving:
            await self._look_for_missing_ranks(self._takers)
        elif poll % _MEMBERS_EVERY == 0 or any(keeper.may_be_left_over for keeper in self._keepers):
            await context.members.refresh(self._nodes())
        if completion is not None and completion.is_finished:
            await self._end_left_over()
        answer = await self._context.contact.lost_nodes()
        if answer is not None and completion is not None:
            completion.note_job(answer.job)
        if answer is not None:
            await self._context.contact.tell(*reports_of(answer.silent))
        lost = overdue.note(answer, clock.monotonic_ms())
        await asyncio.gather(*(self._end_lost(node) for node in lost))

    async def _end_left_over(self) -> None:
        """A process that had not started yet when the job finished would wait for a scheduler that has ended, too."""
        now_ms, members = clock.monotonic_ms(), self._context.members
        self._finished_ms = self._finished_ms or now_ms
        if now_ms - self._finished_ms < _LEFT_OVER_MS:
            return
        for keeper in self._keepers:
            child = keeper.child
            if child and keeper.may_be_left_over and not members.includes(keeper.node_id, child.pid):
                await keeper.dismiss("the job has finished without it")

    async def _look_for_missing_ranks(self, takers: RankTakers) -> None:
        job = await self._context.contact.known_job()
        if job is not None:
            self._context.members.note(job)
            await takers.check(job, [keeper.placed.node_id for keeper in self._keepers])

    def _nodes(self) -> list[tuple[str, int]]:
        """Node id and process id of what runs here, the scheduler apart."""
        return [
            (keeper.node_id, keeper.child.pid)
            for keeper in self._keepers
            if keeper.child is not None and keeper.placed.kind is not ProcessKind.SCHEDULER
        ]

    async def _look(self) -> None:
        self._context.beginner.look_after()

    async def _look_for_notice(self, notices: Notices) -> None:
        notice = None if self._asked_by else await notices.look()
        if notice is None:
            return
        left_s = self._stop_grace_s if notice.within_s is None else notice.within_s
        console.say(
            f"this host is to be taken away within {round(left_s, 1):g} s ({notice.source})", style="yellow"
        )
        self._ask_to_stop(signal.SIGTERM, notice.source)
        self._stop_grace_s = left_s
        kinds = {keeper.placed.kind for keeper in self._keepers}
        if ProcessKind.SCHEDULER in kinds or not self._context.saves_at_end:
            # Nobody trains on without it.
            self._stopping.set()
            return
        self._is_leaving = True
        for task in self._keeping:
            task.cancel()
        self._keeping.append(asyncio.create_task(self._guarded("the hand-over", self._leave())))

    async def _leave(self) -> None:
        """Have standbys of other hosts take the ranks of this one; what is here then ends, whatever became of that."""
        standbys = [keeper for keeper in self._keepers if keeper.placed.kind is ProcessKind.STANDBY]
        await asyncio.gather(*(keeper.dismiss("its host is to be taken away") for keeper in standbys))
        leaving = self._nodes()
        nodes = [NodeId(node_id) for node_id, _ in leaving]
        identities = {pid: process_identity.of(pid) for _, pid in leaving}
        if nodes:
            console.say(f"{', '.join(nodes)}: every rank saves a step, and standbys of other hosts take over")
            answer = await self._context.contact.stop_job(self._asked_by, self._save_within_s, nodes)
            console.say(f"left behind step {answer.step}: {answer.obstacle or 'no step is lost'}")
        await self._end_workers()
        for node_id, pid in leaving:
            why = f"its host is taken away ({self._asked_by})"
            exited = Exited(node_id=NodeId(node_id), pid=pid, reason=why, process=identities[pid])
            await self._context.contact.tell(exited)

    async def _end_lost(self, node: LostNode) -> None:
        for keeper in self._keepers:
            if keeper.node_id == node.node_id:
                await keeper.end_lost(node)

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int) -> None:
        """A process failed for good, and the others end with it."""
        self._decide_code(status)
        self._stopping.set()

    def _decide_code(self, status: int) -> None:
        """The first failure decides the exit code."""
        if self._exit_code is None:
            self._exit_code, self._failed = exit_code_of(status), True

    def _report_failure(self, process: str, reason: str) -> None:
        next_step = f"Look at {self._context.log_dir}, fix what it names, and start the launcher again."
        error = LaunchFailedError(process=process, reason=reason, next_step=next_step)
        console.say(str(error), style="bold red")

    def _stop_by_signal(self, number: int) -> None:
        """Signals that ask the job to stop end it; the second one at once."""
        if self._is_leaving and not self._is_told:
            self._is_told = True
            console.say(
                f"{signal.Signals(number).name}: this host leaves already; another signal ends it at once"
            )
            return
        if self._stopping.is_set() or self._is_leaving:
            self._at_once.set()
            for keeper in self._keepers:
                if keeper.child is not None:
                    keeper.child.kill()
            return
        console.say(f"asked to stop by {signal.Signals(number).name}")
        self._ask_to_stop(number, signal.Signals(number).name)
        self._stopping.set()

    def _ask_to_stop(self, number: int, by: str) -> None:
        self._exit_code, self._asked_by, self._asked_ms = 128 + number, by, clock.monotonic_ms()

    async def _save_last(self) -> str:
        """Who asks for the end loses no step by it. Gives what became of that; empty: there is nothing to save here."""
        context = self._context
        living = [one.placed for one in self._keepers if one.child is not None and not one.child.has_ended]
        is_finished = context.completion is None or context.completion.is_finished
        if not (self._asked_by and context.recovery_enabled) or is_finished:
            return ""
        if not await trains_here(context.contact, living):
            return ""
        if not context.saves_at_end:
            console.say(
                f"the programs are asked to end by SIGTERM, within {round(self._stop_grace_s, 1):g} s; another signal ends all processes at once"
            )
            return ""
        return await save_last(context.contact, self._asked_by, self._save_within_s, self._at_once)

    @property
    def _save_within_s(self) -> float:
        # What is left is for the processes to end in.
        return self._stop_grace_s - min(GRACE_S, self._stop_grace_s / 2)

    async def _what_became_of(self, saved: str, *, is_known: bool) -> str:
        """What is said at last. A second signal may have ended the scheduler, too, as the job finished: then only its store tells."""
        if await self._has_finished():
            return _FINISHED
        completion = self._context.completion
        is_here = any(keeper.placed.kind is ProcessKind.SCHEDULER for keeper in self._keepers)
        stored = completion.read_stored(is_here=is_here) if completion is not None else None
        if stored:
            return _FINISHED_BY_STORE
        return saved if is_known or stored is not None else f"{saved}{_NOT_KNOWN}"

    async def _has_finished(self) -> bool:
        """Has the job finished? Also while its processes were asked to end: nobody waits for their keepers then."""
        completion = self._context.completion
        heard = [keeper.end_notes.take().finished for keeper in self._keepers]
        schedulers = [keeper for keeper in self._keepers if keeper.placed.kind is ProcessKind.SCHEDULER]
        # One that ended by itself could not be asked, and does so with 0 behind a finished job alone.
        ends = [await await_end(keeper.child) for keeper in schedulers if keeper.child is not None]
        return any(heard) or 0 in ends or (completion is not None and completion.is_finished)

    async def _end_workers(self) -> None:
        """Ask the workers to leave, then make them. The scheduler is ended behind them: it informs other hosts."""
        left_s = self._grace_s
        if self._asked_by:
            left_s = max(0.0, left_s - (clock.monotonic_ms() - self._asked_ms) / 1000)
        await self._end((ProcessKind.WORKER, ProcessKind.STANDBY), left_s)

    async def _end_scheduler(self) -> None:
        await self._end((ProcessKind.SCHEDULER,), self._grace_s)
        await self._context.beginner.end()

    @property
    def _grace_s(self) -> float:
        if self._asked_by:
            return self._stop_grace_s
        return GRACE_S if self._context.recovery_enabled else _GRACE_WITHOUT_RECOVERY_S

    async def _end(self, kinds: Sequence[ProcessKind], within_s: float) -> None:
        running = {
            keeper.child: keeper.placed.name
            for keeper in self._keepers
            if keeper.child is not None and keeper.placed.kind in kinds
        }
        killed = await end(list(running), within_s)
        if killed and within_s:
            named = ", ".join(f"{running[child]} (pid {child.pid})" for child in killed)
            console.say(f"asked to end, and killed {within_s:.1f} s later: {named}", style="yellow")

    def _final_code(self) -> int:
        """0 only when every process of this host was done, or was not needed beside one that was."""
        if self._exit_code is not None:
            return self._exit_code
        names = [keeper.placed.name for keeper in self._keepers]
        unfinished = [name for name in names if name not in self._over]
        if unfinished:
            self._report_failure(", ".join(unfinished), "its keeper ended without its being done")
            return ROWS["LAUNCH_FAILED"].exit_code
        surplus = [name for name, how in self._over.items() if how is Next.SURPLUS]
        if surplus:
            said = "the job's workers were complete without: "
            console.say(said + ", ".join(surplus), style="yellow")
        return ROWS["WORLD_FULL"].exit_code if len(surplus) == len(names) else 0
