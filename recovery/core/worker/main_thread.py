"""What the worker's main thread does, as its machine sees it: the generation it is in, and how it gets in and out.

A process whose main thread does not come back is replaced, and when that was often enough it fails.

The worker's state is moved here and nowhere else, by the table in transitions.py. What others read of it they do not change.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Log, Persist
from recovery.core.ids import Generation, NodeId, Rank, RequestId
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import (
    BeginSteps,
    Interrupt,
    OpenGeneration,
    ReplaceProcess,
    Send,
    SetTimer,
    WorkerEffect,
)
from recovery.core.worker.progress import Progress
from recovery.core.worker.transitions import WorkerFact, WorkerState, next_worker_state

REPLACEMENTS_MAX = 3
"""How often in a row, without a new step, a process whose main thread hangs is replaced. A call that hung by bad luck comes through the
first time; what hangs at the same step in every program is the program's own. Half of it would give up after one more bad moment, twice
of it costs everybody three more rollbacks."""


class HangCounter:
    """Counts over the programs that follow each other in one process."""

    def __init__(self) -> None:
        """No program came before this one, and it has applied no step."""
        self._before = s.Hangs()
        """What the program before this one handed over."""
        self._newest_step = 0
        """The newest step that this program has applied; 0: none."""

    @property
    def total(self) -> s.Hangs:
        """For the program that takes this process over. A step that none before it had applied makes the count begin again."""
        progressed = self._newest_step > self._before.step
        return s.Hangs(0 if progressed else self._before.count, max(self._before.step, self._newest_step))

    def begin(self, before: s.Hangs) -> None:
        """The process is up; take over what the program before it has counted."""
        self._before = before

    def applied(self, step: int) -> None:
        """The main thread has applied this step."""
        self._newest_step = max(self._newest_step, step)

    def on_hang(
        self, reason: str, request_id: RequestId, generation: Generation
    ) -> ReplaceProcess | m.Failure:
        """The main thread did not come back: what replaces the process, or the failure with which it ends instead of being replaced once more."""
        hangs = self.total
        if hangs.count < REPLACEMENTS_MAX:
            return ReplaceProcess(reason, s.Hangs(hangs.count + 1, hangs.step))
        times = f"{reason}, {hangs.count + 1} times in a row and never beyond step {hangs.step}: the program hangs there"
        return m.Failure(
            request_id=request_id, generation=generation, step=hangs.step, error=times, traceback=""
        )


class MainThread:
    """The main thread of one process, over all its generations."""

    def __init__(self, node_id: NodeId, rules: Rules) -> None:
        """Start outside the cluster."""
        self._rules = rules
        self.hangs = HangCounter()
        self.progress = Progress(node_id, heartbeat_ms=rules.heartbeat_ms_max)
        self.state = WorkerState.OUTSIDE
        """What it does. Changed only by `_move`."""
        self.generation = Generation(0)
        """The last one whose plan was given, or that ended before it could be; 0: none. Only rises."""
        self.rank: Rank | None = None
        """Of the last plan; None: there was none."""
        self._plan_step = 0
        """Step that the last plan goes back to. Used in TRAINING and STOPPING."""
        self.next_plan: m.Rollback | None = None
        """A plan that came while the main thread was in a generation: followed as soon as it has stopped. Set in STOPPING."""
        self._rendezvous: m.RendezvousOpen | None = None
        """Where this rank 0 listens, sent again after a reconnect. Set in TRAINING, forgotten with the next plan."""
        self._broke: m.CollectiveFailed | None = None
        """How the data plane broke under this rank, sent again after a reconnect. Set from then to the next plan."""
        self._loaded: m.StateLoaded | None = None
        """The state that it has taken from a rank's memory, sent again after a reconnect: all are compared. Set from then to the next plan."""
        self.stopped: s.TrainingStopped | None = None
        """How it has left the training function last: what it has in its memory. Set from then to the next plan."""

    # --- where it stands -----------------------------------------------------------------------------------------------

    @property
    def in_generation(self) -> bool:
        """Is it in a training function?"""
        return self.state in (WorkerState.TRAINING, WorkerState.STOPPING)

    @property
    def world_has_met(self) -> bool:
        """Has it applied a step of the generation that it is in, and can it apply another? Not when a collective has failed."""
        can_step = self.in_generation and self._broke is None
        return can_step and self.progress.has_begun(self.generation)

    def _move(self, fact: WorkerFact) -> None:
        self.state = next_worker_state(self.state, fact)

    # --- what the scheduler wants of it --------------------------------------------------------------------------------

    def admit(self) -> None:
        """This process is in the cluster."""
        self._move(WorkerFact.ADMITTED)

    def open(self, plan: m.Rollback) -> OpenGeneration:
        """Follow a plan. The main thread waits for one."""
        self._move(WorkerFact.PLANNED)
        self.generation, self.rank, self._plan_step = plan.generation, plan.rank, plan.step
        self.next_plan, self._rendezvous, self._broke = None, None, None
        self._loaded = self.stopped = None
        return OpenGeneration(plan)

    def accept(self, plan: m.Rollback) -> None:
        """A plan has come that begins when its checkpoint lies here: this rank is of its generation, and is not in it yet."""
        self.generation, self.rank = plan.generation, plan.rank
        self.next_plan = None

    def postpone(self, plan: m.Rollback, now_ms: int, admitted: m.Admitted | None) -> list[WorkerEffect]:
        """A plan has come while it is in a generation: the interrupt of that one was lost on the way."""
        self.next_plan = plan
        return self.interrupt(f"generation {plan.generation} was planned", now_ms, admitted)

    def on_interrupt(
        self, interrupt: m.Interrupt, now_ms: int, admitted: m.Admitted | None
    ) -> list[WorkerEffect]:
        """A generation has ended; perhaps it is the one that waits, or the one that it is in."""
        if self.next_plan is not None and interrupt.generation >= self.next_plan.generation:
            # It was over before it began; Ready says that this worker knows of it.
            self.generation, self.next_plan = self.next_plan.generation, None
        if interrupt.generation < self.generation:
            return []
        if self.in_generation:
            return self.interrupt(interrupt.reason, now_ms, admitted)
        # It has stopped by itself, by a collective that failed: a main thread that is to be replaced waits for this word.
        return [Interrupt(self.generation, interrupt.reason)] if self._broke is not None else []

    def interrupt(self, reason: str, now_ms: int, admitted: m.Admitted | None) -> list[WorkerEffect]:
        """Stop it at its step, unless that was asked before. How far it is, is written first: a script starts again and forgets it."""
        if self.state is WorkerState.STOPPING:
            return []
        noted = self.note_progress(now_ms, admitted, stopped=True)
        self._move(WorkerFact.INTERRUPTED)
        return [
            *noted,
            Interrupt(self.generation, reason),
            Log("interrupted", f"generation {self.generation} ended: {reason}"),
            SetTimer(s.WorkerTimer.ABORT, now_ms + self._rules.abort_timeout_ms),
        ]

    def on_abort_due(self, request_id: RequestId) -> ReplaceProcess | m.Failure | None:
        """It has had its time to come back: what the process does about it, as `HangCounter.on_hang`. None when it came back in time."""
        if self.state is not WorkerState.STOPPING:
            return None
        reason = f"the main thread did not come back within {self._rules.abort_timeout_ms / 1000:g} s (MS_ABORT_TIMEOUT)"
        return self.hangs.on_hang(reason, request_id, self.generation)

    def send_again(self) -> list[WorkerEffect]:
        """Say after a reconnect what is no request and may have been lost."""
        again: list[WorkerEffect] = []
        if self._rendezvous is not None and self._rendezvous.generation == self.generation:
            again.append(Send(self._rendezvous))
        if self._loaded is not None and self._loaded.content and self.in_generation:
            again.append(Send(self._loaded))
        if self._broke is not None:
            again.append(Send(self._broke))
        return again

    def end(self, reason: str) -> list[WorkerEffect]:
        """The process ends. Training is interrupted; it finds out why when it waits for a plan."""
        in_generation = self.in_generation
        self._move(WorkerFact.ENDED)
        return [Interrupt(self.generation, reason)] if in_generation else []

    def leave(self) -> None:
        """The process ends in order, by itself."""
        self._move(WorkerFact.ENDED)

    # --- what it has done ----------------------------------------------------------------------------------------------

    def on_rendezvous_opened(self, opened: s.RendezvousOpened) -> list[WorkerEffect]:
        """As rank 0 it listens for its world."""
        self._rendezvous = m.RendezvousOpen(generation=opened.generation, address=opened.address)
        return [Send(self._rendezvous)]

    def on_state_restored(self, restored: s.StateRestored) -> list[WorkerEffect]:
        """It holds the state of the plan's step."""
        if restored.generation != self.generation:
            return []
        self._loaded = m.StateLoaded(
            generation=restored.generation,
            step=self._plan_step,
            content=restored.content,
            not_live=restored.not_live[:1024],
        )
        return [Send(self._loaded)]

    def on_agreed(self, agreed: m.StateAgreed) -> list[WorkerEffect]:
        """All ranks have taken the state that it has taken."""
        is_current = agreed.generation == self.generation and self.in_generation
        return [BeginSteps(agreed.generation)] if is_current else []

    def on_steps_done(
        self, done: s.StepsDone, now_ms: int, admitted: m.Admitted | None
    ) -> list[WorkerEffect]:
        """It has applied steps; the first one of a generation is reported."""
        self.progress.applied(done)
        self.hangs.applied(done.step)
        if done.generation != self.generation or done.step <= self._plan_step:
            return []
        if self.progress.has_begun(done.generation):
            return []
        self.progress.begin(done.generation)
        first = m.FirstStep(generation=done.generation, step=done.step)
        return [Send(first), *self.note_progress(now_ms, admitted)]

    def note_progress(
        self, now_ms: int, admitted: m.Admitted | None, *, stopped: bool = False
    ) -> list[Persist]:
        """Write how far it is, as `Progress.note`."""
        trains = self.in_generation and self._broke is None
        return self.progress.note(self.rank, admitted, now_ms, trains=trains, stopped=stopped)

    def on_stopped(
        self, stopped: s.TrainingStopped, now_ms: int, admitted: m.Admitted | None
    ) -> list[WorkerEffect]:
        """It has left the training function. A collective that failed is reported, unless that generation is over anyway."""
        self.stopped = stopped
        self.progress.stopped(stopped.generation, stopped.step)
        noted = self.note_progress(now_ms, admitted, stopped=True)
        self._move(WorkerFact.STOPPED)
        if self.next_plan is not None or not stopped.collective_error:
            return [*noted]
        return [*noted, *self._collective_failed(stopped.generation, stopped.step, stopped.collective_error)]

    def on_data_plane_broke(
        self, broke: s.DataPlaneBroke, now_ms: int, admitted: m.Admitted | None
    ) -> list[WorkerEffect]:
        """A collective failed, and it waits in its training function for the end of the generation."""
        self.progress.stopped(broke.generation, broke.step)
        noted = self.note_progress(now_ms, admitted, stopped=True)
        return [*noted, *self._collective_failed(broke.generation, broke.step, broke.reason)]

    def _collective_failed(self, generation: Generation, step: int, reason: str) -> list[WorkerEffect]:
        self._broke = m.CollectiveFailed(generation=generation, step=step, reason=reason[:1024])
        return [Send(self._broke), Log("collective_failed", reason, warning=True)]

    def check(self, *, ready: bool, done: bool) -> None:
        """Assert what is always true of the main thread."""
        if self.in_generation:
            assert self.generation > 0, "a worker in a generation was given its plan"
            assert self.rank is not None, "a plan gives a rank"
        if self.next_plan is not None:
            assert self.state in (WorkerState.STOPPING, WorkerState.LEAVING), "a plan waits only for a stop"
            assert self.next_plan.generation > self.generation, (
                "the plan that waits is newer than the one it waits for"
            )
        if ready:
            assert self.state in (WorkerState.IDLE, WorkerState.LEAVING), (
                "a worker that trains is not ready for a plan"
            )
        if done:
            assert self.in_generation or self.state is WorkerState.LEAVING, (
                "a worker that waits for a plan is not done"
            )
        if self._rendezvous is not None:
            assert self._rendezvous.generation <= self.generation, (
                "it listens for no generation without a plan"
            )
