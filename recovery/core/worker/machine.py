"""The worker's machine: connect, register, wait out the window, train by the plan, stop when told, roll back, leave.

`handle(stimulus, now_ms) -> effects`, no I/O. What the main thread does is one of three:

    IDLE      it waits for a plan (just started, or stopped)
    TRAINING  it is in the training function of a generation
    LEAVING   it is done, has raised or was asked to stop; only the farewell is left

The connection to the scheduler comes and goes underneath without the main thread noticing. What must not be lost on the way
(requests) is kept until it is answered and told again after every reconnect; their ids make repeats harmless.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Exit, Persist, Report, Say, SetTimer
from recovery.core.ids import Generation, Rank
from recovery.core.policy import backoff
from recovery.core.records import CheckpointState, StepRecord, to_record
from recovery.core.rules import Rules
from recovery.core.worker import ready
from recovery.core.worker import stimuli as s
from recovery.core.worker.activity import Stretches
from recovery.core.worker.connection import REPLACEMENTS_MAX, REPORT_PATIENCE_MS, Identity, Link, Main
from recovery.core.worker.effects import (
    Confirmed,
    FindCheckpoints,
    Interrupt,
    Joined,
    OpenGeneration,
    OpenRendezvous,
    ReplaceProcess,
    Retain,
    Tell,
    WorkerEffect,
)


class WorkerMachine(Link):
    """One process's membership."""

    def __init__(self, identity: Identity, rules: Rules) -> None:
        """Start outside the cluster.

        Args:
            identity: who registers.
            rules: durations and limits.
        """
        super().__init__(identity, rules)
        self._rank: Rank | None = None
        self._plan_step = 0
        self._committed_step = 0
        self._beats = 0
        self._progress = s.StepsDone(generation=Generation(0), step=0, epoch=0, step_in_epoch=0)
        self._stretches = Stretches(heartbeat_ms=rules.heartbeat_ms_max)
        self._interrupted = Generation(0)
        self._ready: m.Ready | None = None
        self._rendezvous: m.RendezvousOpen | None = None
        self._next_plan: m.Rollback | None = None
        self._broke: m.CollectiveFailed | None = None

    def handle(self, stimulus: s.WorkerStimulus, now_ms: int) -> list[WorkerEffect]:
        """Take one stimulus and say what is to be done, in order."""
        handlers: dict[type, Callable[[Any, int], list[WorkerEffect]]] = {
            s.Started: self._on_started,
            s.Connected: self._on_connected,
            s.ConnectFailed: self._on_connect_failed,
            s.Disconnected: self._on_disconnected,
            s.SchedulerSpoke: self._on_scheduler_spoke,
            s.WorkerTimerFired: self._on_timer,
            s.StateRestored: self._on_state_restored,
            s.StepsDone: self._on_steps_done,
            s.CheckpointPublished: self._on_checkpoint_published,
            s.CheckpointRejected: self._on_checkpoint_rejected,
            s.RendezvousOpened: self._on_rendezvous_opened,
            s.CheckpointsFound: self._on_checkpoints_found,
            s.StoreRefused: self._on_store_refused,
            s.TrainingStopped: self._on_training_stopped,
            s.DataPlaneBroke: self._on_data_plane_broke,
            s.TrainingRaised: self._on_training_raised,
            s.TrainingDone: self._on_training_done,
            s.StopAsked: self._on_stop_asked,
            s.PauseNoticed: self._on_pause_noticed,
        }
        return handlers[type(stimulus)](stimulus, now_ms)

    # --- time ----------------------------------------------------------------------------------------------------------

    def _on_timer(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        timers: dict[str, Callable[[s.WorkerTimerFired, int], list[WorkerEffect]]] = {
            "dial": self._on_dial_due,
            "heartbeat": self._on_heartbeat_due,
            "silence": self._on_silence_due,
            "abort": self._on_abort_due,
            "wait": self._on_wait_due,
            "farewell": self._on_farewell_due,
            "reports": self._on_reports_due,
        }
        return timers[fired.key](fired, now_ms)

    def _on_heartbeat_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        again = SetTimer("heartbeat", now_ms + backoff.next_heartbeat_ms(fired.jitter, self._rules))
        return [*(self._beat() if self._in else []), *self._note_progress(now_ms), again]

    def _beat(self) -> list[WorkerEffect]:
        self._beats += 1
        if self._confirm_sequence:
            self._confirm_sequence = self._beats
        return [
            Tell(
                m.Heartbeat(
                    sequence=self._beats, generation=self._progress.generation, step=self._progress.step
                )
            )
        ]

    def _on_pause_noticed(self, noticed: s.PauseNoticed, now_ms: int) -> list[WorkerEffect]:
        """The process stood still for a good part of its lease: it may be fenced, so it asks before it steps or saves."""
        self._confirm_sequence = self._beats + 1
        said = Say(
            "paused",
            f"this process stood still for {noticed.paused_ms / 1000:.1f} s; asking whether its place is still its own",
            warning=True,
        )
        return [said, *(self._beat() if self._in else [])]

    # --- the scheduler's words -----------------------------------------------------------------------------------------

    def _on_scheduler_spoke(self, spoke: s.SchedulerSpoke, now_ms: int) -> list[WorkerEffect]:
        self._heard_ms = now_ms
        handlers: dict[type, Callable[[Any, int], list[WorkerEffect]]] = {
            m.Admitted: self._on_admitted,
            m.Refused: self._on_refused,
            m.HeartbeatAck: self._on_heartbeat_ack,
            m.Received: self._on_received,
            m.Interrupt: self._on_interrupt,
            m.Rollback: self._on_rollback,
            m.Rendezvous: self._on_rendezvous,
            m.Committed: self._on_committed,
            m.JobEnded: self._on_job_ended,
        }
        return handlers[type(spoke.message)](spoke.message, now_ms)

    def _on_admitted(self, admitted: m.Admitted, now_ms: int) -> list[WorkerEffect]:
        before, self.admitted, self._committed_step = self.admitted, admitted, admitted.committed_step
        self._token, self._in, self._admitted_ms = admitted.token, True, now_ms
        self._refused_code = ""
        again = [Tell(request) for request in self._requests.values()]
        if before is not None and admitted.resumed and before.job == admitted.job:
            back: list[WorkerEffect] = [Say("resumed", "the scheduler knows this process again")]
            if self._rendezvous is not None and self._rendezvous.generation == self.generation:
                back.append(Tell(self._rendezvous))
            if self._broke is not None:
                back.append(Tell(self._broke))
            back += again  # before Ready: a checkpoint that is not usable must be known before the next plan
            if self._ready is not None:
                back.append(Tell(self._ready))
            if self._confirm_sequence or self.main is Main.TRAINING:
                back += self._beat()  # how far it is: a scheduler that was restarted knows where it began
            return [*back, *([Retain(admitted.committed_step)] if admitted.committed_step else [])]
        beat = SetTimer("heartbeat", now_ms + backoff.next_heartbeat_ms(0.0, self._rules))
        waiting = self._wait_for(f"all {self._rules.world_size} workers to be ready", now_ms)
        look = self._look()
        if self.main is Main.TRAINING:  # its store is not the one it knew: this life is new to the scheduler
            return [
                Joined(admitted),
                beat,
                *self._interrupt_main("the scheduler admitted this process anew", now_ms),
                *again,
            ]
        return [Joined(admitted), beat, *waiting, look, *again]

    def _on_heartbeat_ack(self, ack: m.HeartbeatAck, now_ms: int) -> list[WorkerEffect]:
        if not self._confirm_sequence or ack.sequence < self._confirm_sequence:
            return []
        self._confirm_sequence = 0
        return [Confirmed()]

    def _on_received(self, received: m.Received, now_ms: int) -> list[WorkerEffect]:
        request = self._requests.get(received.request_id)
        if request is None or isinstance(request, m.Done):
            return []  # Done is told again to a restarted scheduler: it counts heads from what it hears
        del self._requests[received.request_id]
        if isinstance(request, (m.Failure, m.Leave)):
            return [Exit(self._exit_code, self._exit_reason)]
        return self._done() if isinstance(request, m.CheckpointReport) else []

    def _on_interrupt(self, interrupt: m.Interrupt, now_ms: int) -> list[WorkerEffect]:
        if self._next_plan is not None and interrupt.generation >= self._next_plan.generation:
            self.generation = self._interrupted = (
                self._next_plan.generation
            )  # over before it began; Ready says that it was told
            self._next_plan = None
        if self.main is Main.TRAINING and interrupt.generation >= self.generation:
            return self._interrupt_main(interrupt.reason, now_ms)
        return [Tell(self._ready)] if self._ready is not None else []

    def _interrupt_main(self, reason: str, now_ms: int) -> list[WorkerEffect]:
        if self._interrupted == self.generation:
            return []
        self._interrupted = self.generation
        return [
            Interrupt(self.generation, reason),
            Say("interrupted", f"generation {self.generation} ended: {reason}"),
            SetTimer("abort", now_ms + self._rules.abort_timeout_ms),
        ]

    def _on_abort_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        if self.main is not Main.TRAINING or self._interrupted != self.generation:
            return []
        reason = f"the main thread did not come back within {self._rules.abort_timeout_ms / 1000:g} s (MS_ABORT_TIMEOUT)"
        hangs = self.hangs
        if hangs.count < REPLACEMENTS_MAX:
            return [ReplaceProcess(reason, s.Hangs(hangs.count + 1, hangs.step))]
        failure = self._hung(reason)
        return self._leave_with(failure, "PROCESS_HUNG", failure.error, now_ms)

    def _on_rollback(self, plan: m.Rollback, now_ms: int) -> list[WorkerEffect]:
        if plan.generation <= self.generation or self.main is Main.LEAVING:
            return []  # told twice
        if self.main is Main.TRAINING:  # the interrupt before it was lost on the way
            self._next_plan = plan
            return self._interrupt_main(f"generation {plan.generation} was planned", now_ms)
        return self._open(plan)

    def _open(self, plan: m.Rollback) -> list[WorkerEffect]:
        self.main, self.generation = Main.TRAINING, plan.generation
        self._rank, self._plan_step, self._committed_step = plan.rank, plan.step, plan.committed_step
        self._ready, self._next_plan, self._rendezvous, self._waiting_for = None, None, None, ""
        self._broke = None
        assert self.admitted is not None, "a plan is for members"
        self.admitted = msgspec.structs.replace(
            self.admitted,
            job=plan.job or self.admitted.job,
            run=plan.run,
            incarnation=plan.incarnation or self.admitted.incarnation,
        )
        facts = self.memory.note(plan, self.admitted, self._rules, self._own_row(plan, self.admitted))
        return [OpenGeneration(plan), Persist(facts)]

    def _look(self) -> FindCheckpoints:
        assert self.admitted is not None, "who looks is in"
        past = self.memory.past
        of_another_job = past is not None and past.job != self.admitted.job
        rank = self._rank if self.admitted.rank is None else self.admitted.rank
        return FindCheckpoints(self.admitted.job, self.admitted.run, rank, past if of_another_job else None)

    def _on_rendezvous(self, rendezvous: m.Rendezvous, now_ms: int) -> list[WorkerEffect]:
        return [OpenRendezvous(rendezvous.generation, rendezvous.address)]

    def _on_committed(self, committed: m.Committed, now_ms: int) -> list[WorkerEffect]:
        self._committed_step = committed.step
        return [Retain(committed.step)]

    def _on_job_ended(self, ended: m.JobEnded, now_ms: int) -> list[WorkerEffect]:
        late = self.admitted is None and not ended.outcome.code
        said = f"this process came when the job had finished ({ended.reason}). To train again, start the job anew"
        return [
            *([Say("nothing_to_do", said, warning=True)] if late else []),
            *self._end(ended.outcome.code, ended.reason),
        ]

    # --- the main thread's words ---------------------------------------------------------------------------------------

    def _on_state_restored(self, restored: s.StateRestored, now_ms: int) -> list[WorkerEffect]:
        if restored.generation != self.generation:
            return []
        return [Tell(m.StateLoaded(generation=restored.generation, step=self._plan_step))]

    def _on_steps_done(self, done: s.StepsDone, now_ms: int) -> list[WorkerEffect]:
        self._progress, self._newest_step = done, max(self._newest_step, done.step)
        if done.generation != self.generation or done.step <= self._plan_step:
            return []
        if self._first_step_told == done.generation:
            return []
        self._first_step_told = done.generation
        return [Tell(m.FirstStep(generation=done.generation, step=done.step)), *self._note_progress(now_ms)]

    def _note_progress(self, now_ms: int, *, stopped: bool = False) -> list[WorkerEffect]:
        """Write how far this rank is, with its first step, once per heartbeat and when it stops: for people, recovery does not need it."""
        if self.admitted is None or self._rank is None or not self._progress.generation:
            return []
        record = StepRecord(
            node_id=self._identity.node_id,
            rank=self._rank,
            run=self.admitted.run,
            generation=self._progress.generation,
            incarnation=self.admitted.incarnation,
            step=self._progress.step,
            epoch=self._progress.epoch,
            step_in_epoch=self._progress.step_in_epoch,
        )
        over = self.main is not Main.TRAINING or self._broke is not None
        if over or self._first_step_told != record.generation:
            return [Persist((record,))]
        self._stretches.note(record.generation, record.step, now_ms)
        lasted = self._stretches.record(
            record.node_id, record.rank, record.run, record.incarnation, stopped=stopped
        )
        return [Persist((record, lasted))]

    def _on_checkpoint_published(self, published: s.CheckpointPublished, now_ms: int) -> list[WorkerEffect]:
        report = m.CheckpointReport(request_id=published.request_id, checkpoint=published.checkpoint)
        self._requests[report.request_id] = report
        assert self._rank is not None, "whoever saves has a rank"
        row = to_record(self._rank, published.checkpoint, CheckpointState.PUBLISHED)
        return [Persist((row,), (Report(report),))]

    def _on_checkpoint_rejected(self, bad: s.CheckpointRejected, now_ms: int) -> list[WorkerEffect]:
        request = m.CheckpointInvalid(
            request_id=bad.request_id,
            generation=bad.generation,
            step=bad.step,
            path=bad.path[-1024:],
            reason=bad.reason[:1024],
        )
        return [*self._request(request), Say("checkpoint_invalid", bad.reason, warning=True)]

    def _on_rendezvous_opened(self, opened: s.RendezvousOpened, now_ms: int) -> list[WorkerEffect]:
        self._rendezvous = m.RendezvousOpen(generation=opened.generation, address=opened.address)
        return [Tell(self._rendezvous)]

    def _on_training_stopped(self, stopped: s.TrainingStopped, now_ms: int) -> list[WorkerEffect]:
        if self.main is Main.LEAVING:
            return []
        assert self.admitted is not None, "it trained"
        self._progress = s.StepsDone(
            generation=stopped.generation, step=stopped.step, epoch=0, step_in_epoch=0
        )
        effects = self._note_progress(now_ms, stopped=True)
        self.main, self._interrupted = Main.IDLE, self.generation
        self._requests = OrderedDict(
            (request_id, request)
            for request_id, request in self._requests.items()
            if not isinstance(request, m.Done)
        )
        if self._next_plan is not None:  # whatever stopped it belongs to a generation that is over
            return [*effects, *self._open(self._next_plan)]
        if stopped.collective_error:
            effects += self._collective_failed(stopped.generation, stopped.step, stopped.collective_error)
        waiting = self._wait_for(f"all {self._rules.world_size} workers to be ready", now_ms)
        return [*effects, *waiting, self._look()]

    def _on_data_plane_broke(self, broke: s.DataPlaneBroke, now_ms: int) -> list[WorkerEffect]:
        noted = self._note_progress(now_ms, stopped=True)
        return [*noted, *self._collective_failed(broke.generation, broke.step, broke.reason)]

    def _collective_failed(self, generation: Generation, step: int, reason: str) -> list[WorkerEffect]:
        self._broke = m.CollectiveFailed(generation=generation, step=step, reason=reason[:1024])
        return [Tell(self._broke), Say("collective_failed", reason, warning=True)]

    def _on_checkpoints_found(self, found: s.CheckpointsFound, now_ms: int) -> list[WorkerEffect]:
        if self.main is not Main.IDLE:
            return []
        self._ready = ready.ready(
            found,
            generation=self.generation,
            step=self._progress.step,
            committed_step=self._committed_step,
            frame_bytes_max=self._rules.frame_bytes_max,
        )
        if not self._ready.left_out:
            return [Tell(self._ready)]
        text = f"telling the newest {len(self._ready.held)} of {len(found.held)} checkpoints: a message carries no more"
        return [Tell(self._ready), Say("checkpoints_left_out", text, warning=True)]

    def _on_store_refused(self, refused: s.StoreRefused, now_ms: int) -> list[WorkerEffect]:
        leave = m.Leave(request_id=refused.request_id, reason=refused.reason[:1024])
        return self._leave_with(leave, refused.code, refused.reason, now_ms)

    def _on_training_raised(self, raised: s.TrainingRaised, now_ms: int) -> list[WorkerEffect]:
        failure = m.Failure(
            request_id=raised.request_id,
            generation=raised.generation,
            step=raised.step,
            error=raised.error[:1024],
            traceback=raised.traceback[-16_384:],
        )
        return self._leave_with(failure, "TRAINING_RAISED", raised.error, now_ms)

    def _on_training_done(self, done: s.TrainingDone, now_ms: int) -> list[WorkerEffect]:
        request = m.Done(request_id=done.request_id, generation=done.generation, step=done.step)
        self._requests[request.request_id] = request
        late = [SetTimer("reports", now_ms + REPORT_PATIENCE_MS)] if self._reports() else []
        return [*self._done(), *late, *self._wait_for("all ranks to be done", now_ms)]

    def _on_stop_asked(self, asked: s.StopAsked, now_ms: int) -> list[WorkerEffect]:
        leave = m.Leave(request_id=asked.request_id, reason=asked.reason[:1024])
        return self._leave_with(leave, "STOPPED", asked.reason, now_ms)
