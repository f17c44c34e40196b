"""Keeps one process of a host running: starts it, waits for its end, and starts it again where the policy says so."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import IO

import msgspec
from typing_extensions import assert_never

from recovery import clock, process_identity
from recovery.core.ids import NodeId
from recovery.core.messages import Exited
from recovery.end_note import EndNotes
from recovery.errors import ROWS, Cause, LaunchFailedError, cause_of
from recovery.job_line import Start
from recovery.launch import console
from recovery.launch.attempt import Attempt, History, Outcome
from recovery.launch.child_process import ChildProcess
from recovery.launch.children import await_end, end
from recovery.launch.hung_nodes import LostNode
from recovery.launch.incidents import Failure, Incidents, last_lines
from recovery.launch.job_spec import Rejoin
from recovery.launch.job_view import KnownJob, is_taken_over
from recovery.launch.launch_context import LaunchContext
from recovery.launch.node_ids import NodeIds
from recovery.launch.placement import Placed, ProcessKind, environment_of
from recovery.launch.restart_policy import (
    SHORT_ATTEMPT_MS,
    Decision,
    Ended,
    Next,
    as_surplus,
    decide,
    describe,
)
from recovery.launch.unlogged_output import UnloggedOutput

_STACKS_S = 0.2
"""What a process that hangs has to write where it does: a signal, and a few lines."""
GRACE_S = 5.0
"""From SIGTERM to SIGKILL: a worker that shuts down takes less than a second."""
_SOON_MS = 60_000
"""An attempt shorter than this is soon over: an error that needs longer to show again may be another one."""


class ProcessKeeper:
    """One per process of this host."""

    def __init__(self, placed: Placed, context: LaunchContext, incidents: Incidents) -> None:
        """Note what is to run; `keep` does."""
        self.placed = placed
        self.child: ChildProcess | None = None
        """Its process; None: it does not run."""
        self._begun_ms = clock.monotonic_ms()
        """When its newest attempt began, or the one before it ended."""
        self._context, self._incidents = context, incidents
        fresh = context.recovery_enabled and context.rejoin is Rejoin.NEW
        self._ids = NodeIds(placed.node_id, fresh=fresh and placed.kind is not ProcessKind.SCHEDULER)
        self._reports: set[asyncio.Task[bool]] = set()
        """Under way: nobody waits for them before a start."""
        self._log = context.log_dir / f"{placed.name}.log"
        self.end_notes = EndNotes()
        """What its process tells beside its exit code."""
        self._unlogged: UnloggedOutput | None = None
        """What its newest attempt prints where its log cannot be written."""
        self._ended_by_launcher = ""
        """Why this launcher ended a process whose job goes on; empty: it did not."""
        self._informed = 0
        """The incarnation of the scheduler that knows that this process is given up; 0: of none."""
        self._dismissed = asyncio.Event()
        """It is not needed any more."""

    @property
    def node_id(self) -> NodeId:
        """Of the process that runs, or ran last."""
        return self._ids.current

    @property
    def start(self) -> Start:
        """How its process was begun and how long ago, for people who wait for it."""
        how = "" if self.child is None else "fork" if self.child.is_forked else "spawn"
        return Start(how, clock.monotonic_ms() - self._begun_ms)

    async def keep(self) -> Outcome:
        """Attempt after attempt, until it is over for good."""
        history, number, pid = History(), 1, 0
        await self._name_first()
        while not self._dismissed.is_set():
            attempt = await self._judged(await self._attempt(number))
            pid = attempt.pid or pid
            if self._dismissed.is_set():
                break
            job = await self._job_behind(attempt)
            handed_over = job is not None and job.has_handed_over(self.node_id, attempt.pid)
            reached = job.reached if job is not None and self._context.saves_at_end else None
            history.note(attempt, handed_over=handed_over, reached=reached)
            decision = await self._decide(attempt, history, handed_over=handed_over)
            attempt = attempt.as_decided(decision)
            self._report(attempt, pid, decision.next)
            if decision.next is Next.FAIL and await self._has_successor(attempt, pid):
                decision = as_surplus(decision)
            outcome = Outcome(decision.next, attempt.status, attempt.how)
            match decision.next:
                case Next.DONE:
                    pass
                case Next.SURPLUS if attempt.says("WORLD_FULL"):
                    said = f"{self.placed.name}: {attempt.how} (WORLD_FULL); {decision.reason}"
                    console.say(said, style="yellow")
                case Next.SURPLUS | Next.FAIL | Next.FAIL_LATE:
                    self._note(attempt, decision)
                case Next.RELAUNCH:
                    if handed_over or attempt.asked_to_end:
                        console.say(f"{self.placed.name} start {number}: {attempt.how}; {decision.reason}")
                    else:
                        self._note(attempt, decision, is_kept=history.is_news)
                    await asyncio.sleep(decision.after_ms / 1000)
                    history.note_relaunch()
                    number += attempt.begun
                    await self._name_next(number, attempt.pid)
                    continue
                case _:
                    assert_never(decision.next)
            await self.reported()
            return outcome
        return Outcome(Next.SURPLUS, 0, "it is not needed any more")

    async def reported(self, within_s: float | None = None) -> None:
        """Wait until the scheduler knows how its processes have ended, or cannot be told."""
        if self._reports:
            await asyncio.wait(self._reports, timeout=within_s)

    async def end_lost(self, node: LostNode) -> None:
        """End the process of a lost node, which hangs. Its own only: a younger one of the same id has another process id."""
        child = self.child
        if child is None or child.pid != node.pid:
            return
        where = child.ask_for_stacks()
        self._ended_by_launcher = f"ended by its launcher: its node was lost: {node.reason} ({where})"
        said = f"{self.placed.name} (pid {child.pid}) is lost and hangs: {node.reason}; ending it ({where})"
        console.say(said, style="yellow")
        await asyncio.sleep(_STACKS_S)
        # It is not asked: a signal that it hears may end its wait, and it would train until it is killed.
        child.kill()
        await await_end(child)

    @property
    def _is_standby(self) -> bool:
        return self.placed.kind is ProcessKind.STANDBY

    @property
    def may_be_left_over(self) -> bool:
        """May the job end without its process? That of a standby, and one that was started for a lost rank."""
        return self._is_standby or self._ids.replaces is not None

    async def dismiss(self, reason: str) -> None:
        """End it for good: nobody needs it."""
        self._dismissed.set()
        console.say(f"{self.placed.name}: {reason}; ending it", style="yellow")
        if self.child is not None:
            await end([self.child], GRACE_S)

    # --- one attempt -----------------------------------------------------------------------------------------------------

    async def _attempt(self, number: int) -> Attempt:
        """One attempt, from its start to its end."""
        begun_ms = self._begun_ms = clock.monotonic_ms()
        try:
            self.child = child = await self._begin(number)
        except (OSError, MemoryError) as error:
            return Attempt.refused(number, begun_ms, error)
        except LaunchFailedError as error:
            return Attempt.never_begun(number, begun_ms, Cause.PERMANENT, str(error))
        pid, process = child.pid, process_identity.of(child.pid)
        as_node = f", node {self.node_id} in the place of {self._ids.replaces}" if self._ids.replaces else ""
        console.say(f"started {self.placed.name} (pid {pid}, start {number}{as_node}), log: {self._log}")
        status = await await_end(child)
        self.child, self._begun_ms = None, clock.monotonic_ms()
        killed = status == -signal.SIGKILL
        how = describe(status, kernel_message=self._context.kernel_log.message_on(pid) if killed else "")
        # Whatever it said by its exit code answers this launcher's own signal.
        if self._ended_by_launcher:
            status, how = -signal.SIGKILL, self._ended_by_launcher
            self._ended_by_launcher = ""
        noted = self.end_notes.take()
        if noted.finished and self._context.completion is not None:
            self._context.completion.is_finished = True
        is_short = clock.monotonic_ms() - begun_ms < SHORT_ATTEMPT_MS
        by_sigterm = status == -signal.SIGTERM
        if is_short and number > 1 and not (noted.begun or child.is_forked or by_sigterm):
            how = f"it had ended before its program began: {how}"
            return Attempt.never_begun(number, begun_ms, Cause.TEMPORARY, how)
        # A script may end with any number: it says something of the next start only where it is the engine's.
        says = cause_of(status)
        if says is not None and noted.exit_code != status:
            says, how = None, f"{how}, the script's own"
        return Attempt(
            number=number,
            pid=pid,
            status=status,
            cause=says,
            how=how,
            begun_ms=begun_ms,
            ended_ms=clock.monotonic_ms(),
            by_engine=noted.exit_code == status,
            heard_end=noted.finished,
            process=process,
        )

    async def _begin(self, number: int) -> ChildProcess:
        """Start it. Raises as `ProcessStarter.begin`."""
        with self._open_log(number) as log:
            named = {**self._ids.variables, **self.end_notes.variables()}
            environment = environment_of(
                self.placed, self._context.environment, restarts=number - 1, named=named
            )
            return await self._context.beginner.begin(
                self.placed.command,
                environment=environment,
                cpus=self.placed.cpus,
                log=log,
                may_fork=self.placed.kind is not ProcessKind.SCHEDULER,
            )

    def _open_log(self, number: int) -> IO[bytes]:
        """Its log at its end; where that cannot be written the console is, and it runs all the same."""
        self._unlogged = None
        try:
            return console.open_log(self._log, start=number)
        except OSError as error:
            said = f"{self._log} cannot be written ({error.strerror}); what {self.placed.name} prints is shown here"
            console.say(said, style="yellow")
        self._unlogged = UnloggedOutput(self.placed.name, number=self.placed.local_index)
        return self._unlogged.open()

    async def _judged(self, attempt: Attempt) -> Attempt:
        """The same; a failure where it ended with 0 before it was done."""
        completion = self._context.completion
        if attempt.status != 0 or completion is None or await completion.includes(self.placed, self.node_id):
            return attempt
        row, how = ROWS["EXIT_BEFORE_END"], f"{attempt.how} before the end of training"
        return msgspec.structs.replace(attempt, status=row.exit_code, cause=row.cause, how=how)

    # --- what follows ----------------------------------------------------------------------------------------------------

    def _report(self, attempt: Attempt, pid: int, then: Next) -> None:
        """Tell the scheduler how it ended, beside the next start and never before it."""
        if self.placed.kind is ProcessKind.SCHEDULER or not (attempt.pid or then is Next.FAIL):
            return
        task = asyncio.create_task(self._tell(self.node_id, attempt, pid, then))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _tell(self, node_id: NodeId, attempt: Attempt, pid: int, then: Next) -> bool:
        """By the id that the process had: the next start may have another before this is sent."""
        exited = Exited(
            node_id=node_id,
            pid=pid,
            reason=attempt.how,
            gives_up=then is Next.FAIL,
            process=attempt.process,
            standby=self._is_standby,
        )
        is_over = then in {Next.DONE, Next.FAIL_LATE} or attempt.says_job_is_over
        is_over = is_over or attempt.says("SCHEDULER_UNREACHABLE")
        goes_on = self._context.recovery_enabled and not is_over
        told = await self._context.contact.tell(exited, goes_on=goes_on)
        self._informed = self._informed if told else 0
        return told

    async def _name_first(self) -> None:
        """Choose the node id of the first start: not one that an earlier launcher's process had, which would wait for its window."""
        earlier = self._context.earlier
        # A process that comes for the rank of another slot has no rank of its own.
        if earlier is None or not self._ids.fresh or "MS_REPLACES" in self.placed.variables:
            return
        job = await earlier.known()
        left_behind = job.left_behind(self.placed.node_id) if job is not None else None
        if job is None or left_behind is None:
            return
        self._context.members.note(job)
        said = self._ids.begin_after(left_behind, taken=self._context.members.ids)
        if said:
            console.say(f"{self.placed.name}: {said}", style="yellow")

    async def _name_next(self, number: int, pid: int) -> None:
        """Choose the node id of the next start."""
        if not self._ids.fresh or not pid:
            return
        members = self._context.members
        was_member = await members.was_member(self.node_id, pid)
        wanted_slot = await self._wanted_slot()
        said = self._ids.begin_next(number, was_member=was_member, taken=members.ids, wanted_slot=wanted_slot)
        if said:
            console.say(f"{self.placed.name}: {said}", style="yellow")

    async def _wanted_slot(self) -> NodeId | None:
        """The lost holder of the rank that this process was placed for, while nobody has taken that rank; None: there is none."""
        holder = self.placed.variables.get("MS_REPLACES")
        job = await self._context.contact.known_job() if holder is not None else None
        nodes = job.nodes if job is not None else ()
        still_has_it = any(node.node_id == holder and node.rank is not None for node in nodes)
        return NodeId(holder) if holder is not None and still_has_it else None

    async def _job_behind(self, attempt: Attempt) -> KnownJob | None:
        """What the scheduler knows behind one that ended as SIGTERM ends one: has it left as planned, has the job made a step? None: that is not asked."""
        by_sigterm = attempt.status in (-signal.SIGTERM, 128 + signal.SIGTERM)
        if not by_sigterm or self.placed.kind is ProcessKind.SCHEDULER or not self._context.recovery_enabled:
            return None
        return await self._context.contact.known_job()

    async def _decide(self, attempt: Attempt, history: History, *, handed_over: bool) -> Decision:
        soon = attempt.lasted_ms < _SOON_MS
        repeats = attempt.begun and self._incidents.repeats(self.placed.name, self._lines()) and soon
        refused = attempt.says("WORLD_FULL")
        members = self._context.members
        ended = Ended(
            status=attempt.status,
            cause=attempt.cause,
            world_full=refused,
            was_member=refused and bool(await members.was_member(self.node_id, attempt.pid)),
            handed_over=handed_over,
            asked_to_end=attempt.asked_to_end,
            idle_ends=history.idle_ends,
            training_done=attempt.heard_end or (self._has_finished and not self.may_be_left_over),
            needed=True,
            first=attempt.number == 1 and soon,
            recovery_enabled=self._context.recovery_enabled,
            has_stepped=attempt.status <= 0 or self._context.has_stepped(),
            repeats=repeats,
            short_attempts=history.short_attempts,
            relaunched_ms=tuple(history.relaunched_ms),
            unbegun_ms=history.unbegun_ms,
            patience_ms=self._context.start_patience_ms,
            max_restarts=self._context.max_restarts,
            now_ms=clock.monotonic_ms(),
        )
        decision = decide(ended)
        if decision.next is Next.FAIL and not await self._is_needed(attempt):
            decision = decide(msgspec.structs.replace(ended, needed=False))
        return decision

    @property
    def _has_finished(self) -> bool:
        completion = self._context.completion
        return completion is not None and completion.is_finished

    async def _is_needed(self, attempt: Attempt) -> bool:
        """Does the job wait for it? Asked only where its end would end the job."""
        if self.placed.kind is ProcessKind.SCHEDULER or attempt.says_job_is_over:
            return True
        job = await self._context.contact.known_job() if self._context.recovery_enabled else None
        self._informed = job.scheduler.incarnation if job else 0
        return job.needs(self.placed.node_id, is_standby=self._is_standby) if job else not self._is_standby

    async def _has_successor(self, attempt: Attempt, pid: int) -> bool:
        """Does a standby take its rank? The scheduler knows by now that this process does not come back, and ends the job if none does."""
        if self.placed.kind is ProcessKind.SCHEDULER or attempt.says_job_is_over:
            return False
        await self.reported()
        context = self._context
        if not context.recovery_enabled:
            return False
        report = partial(self._tell, self.node_id, attempt, pid, Next.FAIL)
        is_needed = partial(KnownJob.needs, first=self.placed.node_id, is_standby=self._is_standby)
        return await is_taken_over(
            context.contact, is_needed, report, informed=self._informed, was_heard=bool(context.members.ids)
        )

    def _lines(self) -> tuple[str, ...]:
        """What its newest attempt has printed last."""
        return last_lines(self._log if self._unlogged is None else self._unlogged.lines())

    def _note(self, attempt: Attempt, decision: Decision, *, is_kept: bool = True) -> None:
        """Keep a failure as an incident, and say it on the console."""
        said = f"{self.placed.name} start {attempt.number}: {attempt.how}; {decision.reason}"
        if not is_kept:
            console.say(said, style="bold red")
            return
        failure = Failure(
            process=self.placed.name,
            rank=self.placed.rank,
            start=attempt.number,
            status=attempt.how,
            wall=clock.instant(clock.wall_ms()),
            consequence=decision.reason,
            log="none: it could not be written" if self._unlogged else str(self._log),
        )
        kept = self._incidents.note(
            failure,
            self._lines(),
            begun_ms=attempt.begun_ms,
            ended_ms=attempt.ended_ms,
            job_goes_on=decision.next is Next.SURPLUS,
            says_why=attempt.says_why,
        )
        console.say(f"{said} ({kept})", style="bold red")
