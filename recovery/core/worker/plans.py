"""Which plan this process follows: at once, or when what it goes back to lies on this node. Between two plans it waits, and says what it holds.

A rank may be offered to it meanwhile: it looks what it can read of that rank's files, and says so. A standby is asked when a rank is lost. So is a fresh
process whose node holds the place of another one: its own directories may hold nothing of its rank.
"""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Log, Persist
from recovery.core.ids import Rank
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.core.worker.checkpoint_messages import CheckpointMessages
from recovery.core.worker.connection import Connection
from recovery.core.worker.effects import KeepDirectories, Send, WorkerEffect
from recovery.core.worker.fetches import Fetches
from recovery.core.worker.job_history import JobHistoryRecorder
from recovery.core.worker.main_thread import MainThread
from recovery.core.worker.transitions import WorkerState
from recovery.core.worker.wait_note import WaitNote


class Plans:
    """The plans of one process."""

    def __init__(
        self,
        rules: Rules,
        wait: WaitNote,
        connection: Connection,
        main_thread: MainThread,
        checkpoints: CheckpointMessages,
        fetches: Fetches,
    ) -> None:
        """None was given yet. The arguments are the parts of the machine that a plan changes."""
        self._rules, self._wait, self._connection = rules, wait, connection
        self._main_thread, self._checkpoints, self._fetches = main_thread, checkpoints, fetches
        self.memory = JobHistoryRecorder()
        self._offered: Rank | None = None
        """The rank that was offered last; None: none since the last plan."""
        self.admitted: m.Admitted | None = None
        """The last admission, with what later plans said of job, run and incarnation. None: there was none."""

    def on_rollback(self, plan: m.Rollback, now_ms: int) -> list[WorkerEffect]:
        """A plan has come."""
        if plan.generation <= self._main_thread.generation or self._main_thread.state is WorkerState.LEAVING:
            # Sent twice, or too late.
            return []
        if self._main_thread.in_generation:
            return self._main_thread.postpone(plan, now_ms, self.admitted)
        return self._follow(plan, now_ms)

    def follow_next(self, now_ms: int) -> list[WorkerEffect]:
        """The main thread has stopped: follow the plan that came meanwhile, or wait for one."""
        plan = self._main_thread.next_plan
        return self._follow(plan, now_ms) if plan is not None else self.wait_for_next(now_ms)

    def wait_for_next(self, now_ms: int) -> list[WorkerEffect]:
        """Look what this node holds, to say so and be ready for the next plan."""
        assert self.admitted is not None, "a worker that searches is admitted"
        ranks = f"all {self._rules.world_size} workers to be ready"
        waiting_for = "a rank to take over (standby)" if self.admitted.standby else ranks
        waits = self._wait.begin(waiting_for, now_ms)
        return [*waits, self._checkpoints.find(self.admitted, self._main_thread.rank, self.memory.past)]

    def on_interrupt(self, interrupt: m.Interrupt, now_ms: int) -> list[WorkerEffect]:
        """Stop the main thread. One that is idle is ready, which the scheduler may not have heard."""
        if self._fetches.ends(interrupt.generation):
            return self.wait_for_next(now_ms)
        stops = self._main_thread.on_interrupt(interrupt, now_ms, self.admitted)
        return [*stops, *self._checkpoints.send_ready()]

    def on_offer(self, offer: m.Offer) -> list[WorkerEffect]:
        """A rank is offered: look for its files, if the main thread waits for a plan.

        A worker that fetches what its plan goes back to has the rank: it was asked again before the scheduler heard that.
        """
        waits = self._main_thread.state is WorkerState.IDLE and self._fetches.plan is None
        if not waits or self.admitted is None:
            return []
        self._offered = offer.rank
        text = f"rank {offer.rank}, which {offer.replaced} held, is offered to this process; looking for its files"
        return [Log("rank_offered", text), self._checkpoints.find_offered(self.admitted, offer)]

    def on_checkpoints_found(self, found: s.CheckpointsFound, *, connected: bool) -> list[WorkerEffect]:
        """The directories were searched. What counts is what was looked for last, while there is no plan.

        Before the scheduler has admitted this process on the connection that stands nobody is told: one that does not know it would take this for
        all that it knows of its job.
        """
        waits = self._main_thread.state is WorkerState.IDLE and self._fetches.plan is None
        if not waits or not self._checkpoints.is_newest(found):
            return []
        self._fetches.note_held(found.copies)
        stopped = self._main_thread.stopped
        assert self.admitted is not None, "a worker that searches is admitted"
        if stopped is not None and self.memory.job != self.admitted.job:
            # Of a job that this scheduler does not know.
            stopped = None
        generation, step = self._main_thread.generation, self._main_thread.progress.step
        effects = self._checkpoints.on_found(found, generation, step, stopped)
        return [effect for effect in effects if connected or not isinstance(effect, Send)]

    def on_fetched(self, fetched: s.Fetched) -> list[WorkerEffect]:
        """A copy lies here, or what a plan waited for: then training begins, and the scheduler hears that this rank holds it again."""
        plan, effects = self._fetches.on_fetched(fetched)
        if plan is None:
            return effects
        self._wait.end()
        held = s.CheckpointPublished(fetched.request_id, fetched.checkpoint)
        return [
            *effects,
            self._main_thread.open(plan),
            *self._fetches.planned(plan, self.memory.past),
            *self._checkpoints.on_published(held, plan.rank),
        ]

    def _follow(self, plan: m.Rollback, now_ms: int) -> list[WorkerEffect]:
        assert self.admitted is not None, "a plan is for members"
        if not plan.sources:
            opened = self._main_thread.open(plan)
            noted = self._note(plan, self.admitted)
            return [opened, *noted, *self._fetches.planned(plan, self.memory.past)]
        self._main_thread.accept(plan)
        noted = self._note(plan, self.admitted)
        text = f"this rank's checkpoint of step {plan.step}, which other nodes have"
        return [
            *noted,
            *self._wait.begin(text, now_ms),
            *self._fetches.wait_for(plan, plan.job or self.admitted.job),
        ]

    def _note(self, plan: m.Rollback, admitted: m.Admitted) -> list[WorkerEffect]:
        self._checkpoints.planned(plan)
        self._wait.end()
        self.admitted = now = msgspec.structs.replace(
            admitted,
            job=plan.job or admitted.job,
            run=plan.run,
            standby=False,
            incarnation=plan.incarnation or admitted.incarnation,
        )
        own = self._connection.own_record(plan, now)
        # If it is of the rank that was offered, this process has taken it over.
        kept = [KeepDirectories(plan.rank)] if self._offered == plan.rank else []
        self._offered = None
        return [*kept, Persist(self.memory.note(plan, now, self._rules, own))]
