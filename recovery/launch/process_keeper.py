"""Keeps one process of a host running: starts it, waits for its end, and starts it again where the policy says so."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
from typing_extensions import assert_never

from recovery import clock
from recovery.errors import Cause, ExitBeforeEndError, LaunchFailedError, WorldFullError, cause_of
from recovery.launch import console, kernel_log
from recovery.launch.children import Child, end, signal_group
from recovery.launch.incidents import Failure, Incidents
from recovery.launch.job_completion import Completion
from recovery.launch.overdue import LostNode
from recovery.launch.placement import Kind, Placed, environment_of
from recovery.launch.restarts import SHORT_ATTEMPT_MS, Decision, Ended, Next, decide, describe
from recovery.launch.scheduler_contact import Contact
from recovery.launch.start_method import Beginner

GRACE_S = 5.0
"""From SIGTERM to SIGKILL: a worker that shuts down takes less than a second."""
_SOON_MS = 60_000
"""An attempt shorter than this is soon over: an error that needs longer to show again may be another one."""
_PASSES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
"""A start that fails for want of these may succeed later."""


class LaunchContext(NamedTuple):
    """What all processes of one launcher share."""

    environment: Mapping[str, str]
    """The launcher's own."""
    log_dir: Path
    """Where logs and incidents go."""
    max_restarts: int
    """Of one process within an hour."""
    has_stepped: Callable[[], bool]
    """Has any rank of the job ever applied a step?"""
    contact: Contact
    """With the scheduler."""
    beginner: Beginner
    """Begins them."""
    completion: Completion | None
    """Knows whether a worker that ended with 0 was done; None: every one was, a dry run has no scheduler to ask."""

    @property
    def recovery_enabled(self) -> bool:
        """Does a failure end the job, or is it recovered from?"""
        return self.environment.get("MS_ENABLE_RECOVERY") == "1"


class Outcome(NamedTuple):
    """How a process is over for good."""

    next: Next
    """`DONE`, `SURPLUS` or `FAIL`."""
    status: int
    """Of its last attempt: exit code; negative: the signal that killed it."""
    how: str
    """The same for people."""


class _Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a process, over."""

    number: int
    """Which start it was, 1-based."""
    pid: int
    """0: it could not be started."""
    status: int
    """Exit code; negative: the signal that killed it."""
    cause: Cause | None
    """What the end says of the next start; None: nothing."""
    how: str
    """For people."""
    begun_ms: int
    ended_ms: int

    @property
    def lasted_ms(self) -> int:
        return self.ended_ms - self.begun_ms


class ProcessKeeper:
    """One per process of this host."""

    def __init__(self, placed: Placed, context: LaunchContext, incidents: Incidents) -> None:
        """Note what is to run; `keep` does.

        Args:
            placed: the process.
            context: what it shares with the others.
            incidents: where its failures are kept.
        """
        self.placed = placed
        self.child: Child | None = None
        """Its process; None: it does not run."""
        self._context, self._incidents = context, incidents
        self._log = context.log_dir / f"{placed.name}.log"
        self._log_is_marked = False
        """The log says where its newest attempt begins."""
        self._ended_by_launcher = ""
        """Why this launcher ended a process whose job goes on; empty: it did not."""

    async def keep(self) -> Outcome:
        """Attempt after attempt, until it is over for good."""
        relaunched_ms: list[int] = []
        short_attempts, pid = 0, 0
        while True:
            attempt = await self._judged(await self._attempt(len(relaunched_ms) + 1))
            pid = attempt.pid or pid
            short_attempts = short_attempts + 1 if attempt.lasted_ms < SHORT_ATTEMPT_MS else 0
            decision = await self._decide(attempt, short_attempts, relaunched_ms)
            gives_up = decision.next is Next.FAIL
            if self.placed.kind is Kind.WORKER and (attempt.pid or gives_up):
                await self._context.contact.report(self.placed.node_id, pid, attempt.how, gives_up=gives_up)
            outcome = Outcome(decision.next, attempt.status, attempt.how)
            match decision.next:
                case Next.DONE:
                    return outcome
                case Next.SURPLUS:
                    said = f"{self.placed.name}: {attempt.how} (WORLD_FULL); {decision.reason}"
                    console.say(said, style="yellow")
                    return outcome
                case Next.FAIL:
                    self._note(attempt, decision)
                    return outcome
                case Next.RELAUNCH:
                    self._note(attempt, decision)
                    await asyncio.sleep(decision.after_ms / 1000)
                    relaunched_ms.append(clock.monotonic_ms())
                case _:
                    assert_never(decision.next)

    async def end_lost(self, node: LostNode) -> None:
        """End the process of a lost node, which hangs. Its own only: a younger one of the same id has another process id."""
        child = self.child
        if child is None or child.pid != node.pid:
            return
        self._ended_by_launcher = f"ended by its launcher: its node was lost: {node.reason}"
        console.say(
            f"{self.placed.name} (pid {child.pid}) is lost and hangs: {node.reason}; ending it",
            style="yellow",
        )
        await end([child], GRACE_S)

    # --- one attempt -----------------------------------------------------------------------------------------------------

    async def _attempt(self, number: int) -> _Attempt:
        """One attempt, from its start to its end."""
        begun_ms = clock.monotonic_ms()
        try:
            self.child = child = await self._begin(number)
        except OSError as error:
            cause = Cause.TEMPORARY if error.errno in _PASSES else LaunchFailedError.cause
            return _not_started(number, begun_ms, cause, str(error.strerror))
        except LaunchFailedError as error:
            return _not_started(number, begun_ms, Cause.PERMANENT, str(error))
        pid = child.pid
        console.say(f"started {self.placed.name} (pid {pid}, start {number}), log: {self._log}")
        status = await child.wait()
        # What it may have left: loader processes, helpers.
        signal_group(pid, signal.SIGKILL)
        self.child = None
        how = describe(status, kernel_message=kernel_log.message_on(pid) if status == -signal.SIGKILL else "")
        # Whatever it said by its exit code answers this launcher's own signal.
        if self._ended_by_launcher:
            status, how = -signal.SIGKILL, self._ended_by_launcher
            self._ended_by_launcher = ""
        return _Attempt(
            number=number,
            pid=pid,
            status=status,
            cause=cause_of(status),
            how=how,
            begun_ms=begun_ms,
            ended_ms=clock.monotonic_ms(),
        )

    async def _begin(self, number: int) -> Child:
        """Start it. Raises as `Beginner.begin`."""
        with self._open_log(number) as log:
            return await self._context.beginner.begin(
                self.placed.command,
                environment=environment_of(self.placed, self._context.environment, restarts=number - 1),
                cpus=self.placed.cpus,
                log=log,
                may_fork=self.placed.kind is Kind.WORKER,
            )

    def _open_log(self, number: int) -> IO[bytes]:
        """Its log at its end; where that cannot be written its output is lost, and it runs all the same."""
        self._log_is_marked = True
        try:
            return console.open_log(self._log, start=number)
        except OSError as error:
            self._log_is_marked = False
            console.say(f"{self._log} cannot be written ({error.strerror})", style="yellow")
        try:
            return self._log.open("ab", buffering=0)
        except OSError:
            return open(os.devnull, "ab", buffering=0)  # noqa: PTH123 - it is no file of a directory

    async def _judged(self, attempt: _Attempt) -> _Attempt:
        """The same; a failure where it ended with 0 before it was done."""
        completion = self._context.completion
        if attempt.status != 0 or completion is None or await completion.includes(self.placed):
            return attempt
        return msgspec.structs.replace(
            attempt,
            status=ExitBeforeEndError.exit_code,
            cause=ExitBeforeEndError.cause,
            how=f"{attempt.how} before the end of training",
        )

    # --- what follows ----------------------------------------------------------------------------------------------------

    async def _decide(self, attempt: _Attempt, short_attempts: int, relaunched_ms: list[int]) -> Decision:
        soon = attempt.lasted_ms < _SOON_MS
        has_output = attempt.pid != 0 and self._log_is_marked
        repeats = has_output and self._incidents.repeats(self.placed.name, self._log) and soon
        refused = attempt.status == WorldFullError.exit_code
        contact = self._context.contact
        return decide(
            Ended(
                status=attempt.status,
                cause=attempt.cause,
                was_member=refused and await contact.was_member(self.placed.node_id, attempt.pid),
                first=attempt.number == 1 and soon,
                recovery_enabled=self._context.recovery_enabled,
                has_stepped=attempt.status <= 0 or self._context.has_stepped(),
                repeats=repeats,
                short_attempts=short_attempts,
                relaunched_ms=tuple(relaunched_ms),
                max_restarts=self._context.max_restarts,
                now_ms=clock.monotonic_ms(),
            )
        )

    def _note(self, attempt: _Attempt, decision: Decision) -> None:
        """Keep a failure as an incident, and say it on the console."""
        failure = Failure(
            process=self.placed.name,
            rank=self.placed.rank,
            start=attempt.number,
            status=attempt.how,
            wall=console.now(),
            consequence=decision.reason,
            log=str(self._log),
        )
        kept = self._incidents.note(failure, begun_ms=attempt.begun_ms, ended_ms=attempt.ended_ms)
        console.say(
            f"{self.placed.name} start {attempt.number}: {attempt.how}; {decision.reason} ({kept})",
            style="bold red",
        )


def _not_started(number: int, begun_ms: int, cause: Cause, reason: str) -> _Attempt:
    return _Attempt(
        number=number,
        pid=0,
        status=LaunchFailedError.exit_code,
        cause=cause,
        how=f"could not be started ({reason})",
        begun_ms=begun_ms,
        ended_ms=clock.monotonic_ms(),
    )
