"""The worker's machine: connect, register, wait out the window, train by the plan, stop when asked, roll back, leave.

`handle(stimulus, now_ms) -> effects`, no I/O. Each part keeps a small state of its own, which nobody else writes; the machine hands it
what it needs. What the main thread does and where the connection stands are two states, whose moves stand in transitions.py.

    connection.py            dials, registers, waits out refusals, notices silence
    main_thread.py           the generation that the main thread is in, and how it gets in and out
    requests.py              what must not be lost on the way to the scheduler; the last word of a process that leaves by its own decision
    checkpoint_messages.py   saved, damaged, held, committed checkpoints
    progress.py              how far this rank is; numbers the heartbeats, confirms this process's place after a pause
    job_history.py           what is known of the job, for a scheduler that has lost its store
    fetches.py               copies of others' checkpoints, and what a plan has fetched first
    plans.py                 follows the plans, at once or when what they go back to lies here; answers the offer of a rank
    barrier.py               where the main thread is and stops when asked; asks for its rank to be handed over before it leaves
    wait_note.py             says what is waited for
"""

from __future__ import annotations

from typing_extensions import assert_never

from recovery.core import messages as m
from recovery.core.copy_messages import (
    CopiesKept,
    CopyFailed,
    CopyOrder,
    CopyReport,
    UploadOrder,
    UploadReport,
)
from recovery.core.effects import Log
from recovery.core.ids import Incarnation, RequestId
from recovery.core.policy import backoff
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.core.worker.barrier import AtBarrier
from recovery.core.worker.checkpoint_messages import CheckpointMessages
from recovery.core.worker.connection import Connection, GivenUp, Identity, LastAdmission
from recovery.core.worker.effects import (
    ConfirmRank,
    NoteAdmission,
    OpenRendezvous,
    Send,
    SetTimer,
    WorkerEffect,
)
from recovery.core.worker.fetches import Fetches
from recovery.core.worker.main_thread import MainThread
from recovery.core.worker.plans import Plans
from recovery.core.worker.progress import Heartbeats
from recovery.core.worker.requests import (
    STOPPED,
    Departure,
    Requests,
    failure_of,
    leave_of,
    nothing_to_do,
)
from recovery.core.worker.transitions import WorkerState
from recovery.core.worker.wait_note import WaitNote


class WorkerMachine:
    """One process's membership."""

    def __init__(self, identity: Identity, rules: Rules) -> None:
        """Start outside the cluster."""
        self._rules = rules
        self._wait = WaitNote()
        self._connection = Connection(identity, rules, self._wait)
        self._main_thread = MainThread(identity.node_id, rules)
        self._requests = Requests()
        self._checkpoints = CheckpointMessages(rules, self._requests)
        self._departure = Departure(self._requests)
        self._barrier = AtBarrier(rules, self._main_thread, self._requests, self._departure)
        self._heartbeats = Heartbeats()
        self._fetches = Fetches(self._requests)
        self._plans = Plans(
            rules, self._wait, self._connection, self._main_thread, self._checkpoints, self._fetches
        )

    @property
    def state(self) -> WorkerState:
        """What the main thread does."""
        return self._main_thread.state

    @property
    def admitted(self) -> m.Admitted | None:
        """The last admission, with what later plans said of job, run and incarnation; None: there was none."""
        return self._plans.admitted

    @property
    def past(self) -> m.JobHistory | None:
        """What this process remembers of the job it trains; None: it was given no plan."""
        return self._plans.memory.past

    @property
    def hangs(self) -> s.Hangs:
        """What a program that takes this process over must know of hangs, if the main thread does not hang now."""
        return self._main_thread.hangs.total

    @property
    def _leaving(self) -> bool:
        return self._main_thread.state is WorkerState.LEAVING

    def handle(self, stimulus: s.WorkerStimulus, now_ms: int) -> list[WorkerEffect]:
        """Take one stimulus and say what is to be done, in order."""
        effects = self._take(stimulus, now_ms)
        return [*self._barrier.advance(), *effects]

    def _take(self, stimulus: s.WorkerStimulus, now_ms: int) -> list[WorkerEffect]:  # noqa: PLR0911, PLR0912, C901 - one line per stimulus, nothing else
        match stimulus:
            case s.Started():
                return self._on_started(stimulus, now_ms)
            case s.Connected():
                return self._connection.on_connected(stimulus, self._standing, now_ms)
            case s.ConnectFailed():
                return self._on_connect_failed(stimulus, now_ms)
            case s.Disconnected():
                lost = self._connection.on_disconnected(stimulus, now_ms, leaving=self._leaving)
                return [*lost, *self._barrier.on_disconnected()]
            case s.MessageReceived():
                return self._on_message(stimulus.message, now_ms)
            case s.TimerFired():
                return self._on_timer(stimulus, now_ms)
            case s.StateRestored():
                return self._main_thread.on_state_restored(stimulus)
            case s.StepsDone():
                return self._main_thread.on_steps_done(stimulus, now_ms, self.admitted)
            case s.CheckpointPublished():
                return self._checkpoints.on_published(stimulus, self._main_thread.rank)
            case s.ReportStored():
                return self._requests.stored(stimulus.request_id)
            case s.SaveFailed():
                return self._checkpoints.on_save_failed(stimulus)
            case s.Uploaded():
                return self._checkpoints.on_uploaded(stimulus)
            case s.CheckpointRejected():
                return self._checkpoints.on_rejected(stimulus)
            case s.RendezvousOpened():
                return self._main_thread.on_rendezvous_opened(stimulus)
            case s.CheckpointsFound():
                connected = self._connection.is_admitted
                return self._plans.on_checkpoints_found(stimulus, connected=connected)
            case s.Fetched():
                return [] if self._leaving else self._plans.on_fetched(stimulus)
            case s.FetchFailed():
                return [] if self._leaving else self._fetches.on_failed(stimulus)
            case s.StoreRefused():
                return self._on_store_refused(stimulus, now_ms)
            case s.TrainingStopped():
                return self._on_training_stopped(stimulus, now_ms)
            case s.DataPlaneBroke():
                return self._main_thread.on_data_plane_broke(stimulus, now_ms, self.admitted)
            case s.TrainingRaised():
                return self._leave_with(failure_of(stimulus), "TRAINING_RAISED", stimulus.error, now_ms)
            case s.TrainingDone():
                return self._on_training_done(stimulus, now_ms)
            case s.StopAsked():
                leave = leave_of(stimulus.request_id, stimulus.reason)
                return self._leave_with(leave, STOPPED, stimulus.reason, now_ms)
            case s.DepartAsked() | s.TrainingStopAsked() | s.Positioned():
                connected = self._connection.is_admitted
                return self._barrier.on_stimulus(stimulus, now_ms, connected=connected)
            case s.PauseNoticed():
                return self._on_pause_noticed(stimulus)
            case _:
                assert_never(stimulus)

    def check(self) -> None:
        """Assert what is always true between two stimuli. Tests and the simulation call it after each one."""
        self._main_thread.check(ready=self._checkpoints.ready is not None, done=self._requests.is_done)
        self._connection.check(self.admitted.token if self.admitted else None)
        self._requests.check()
        self._heartbeats.check()
        self._fetches.check(idle=not self._main_thread.in_generation)
        if self.admitted is None:
            outside = (WorkerState.OUTSIDE, WorkerState.LEAVING)
            assert self._main_thread.state in outside, (
                "a process that was never admitted neither waits for a plan nor trains"
            )
            assert not self._connection.is_admitted, (
                "a process that is admitted on this connection was admitted"
            )
        else:
            assert self._main_thread.state is not WorkerState.OUTSIDE, (
                "a process that was admitted is inside, also while disconnected"
            )

    def _on_message(self, message: m.FromScheduler, now_ms: int) -> list[WorkerEffect]:  # noqa: PLR0911, PLR0912, C901 - one line per message
        self._connection.heard(now_ms)
        match message:
            case m.Admitted():
                return self._on_admitted(message, now_ms)
            case m.Refused():
                outcome = self._connection.on_refused(message, now_ms, leaving=self._leaving)
                return self._follow(outcome)
            case m.HeartbeatAck():
                return [ConfirmRank()] if self._heartbeats.confirms(message) else []
            case m.Received():
                return self._on_received(message)
            case m.Interrupt():
                return self._plans.on_interrupt(message, now_ms)
            case m.Rollback():
                return self._plans.on_rollback(message, now_ms)
            case m.Rendezvous():
                return [OpenRendezvous(message.generation, message.address)]
            case m.StateAgreed():
                return self._main_thread.on_agreed(message)
            case m.Committed():
                return self._checkpoints.on_committed(message)
            case m.Offer():
                return self._plans.on_offer(message)
            case CopyOrder():
                return [] if self._leaving else self._fetches.on_order(message, self.admitted)
            case CopiesKept():
                return self._fetches.on_kept(message, self.past)
            case UploadOrder():
                return [] if self._leaving else self._checkpoints.on_upload_order(message, self.admitted)
            case m.JobEnded():
                said = nothing_to_do(self.admitted, message)
                return [*said, *self._end(message.outcome.code, message.reason)]
            case _:
                return self._barrier.on_message(message, now_ms)

    def _on_timer(self, fired: s.TimerFired, now_ms: int) -> list[WorkerEffect]:
        match fired.timer:
            case s.WorkerTimer.DIAL:
                return self._connection.on_dial_due(self._standing, now_ms)
            case s.WorkerTimer.HEARTBEAT:
                return self._on_heartbeat_due(fired, now_ms)
            case s.WorkerTimer.SILENCE:
                return self._connection.on_silence_due(now_ms)
            case s.WorkerTimer.ABORT:
                return self._on_abort_due(now_ms)
            case s.WorkerTimer.WAIT_NOTE:
                return self._wait.on_due(now_ms)
            case s.WorkerTimer.SHUTDOWN:
                return self._departure.on_due()
            case s.WorkerTimer.DEPART:
                return self._barrier.on_timer(now_ms)
            case s.WorkerTimer.REPORTS:
                # While nobody listens they wait: the next admission sends them.
                return self._requests.on_reports_due(now_ms) if self._connection.is_admitted else []
            case _:
                assert_never(fired.timer)

    # --- the connection ------------------------------------------------------------------------------------------------

    def _on_started(self, started: s.Started, now_ms: int) -> list[WorkerEffect]:
        self._main_thread.hangs.begin(started.hangs)
        return self._connection.on_started(started, now_ms)

    @property
    def _standing(self) -> LastAdmission:
        incarnation = self.admitted.incarnation if self.admitted else Incarnation(0)
        return LastAdmission(incarnation, self._main_thread.generation, self._plans.memory.job)

    def _on_connect_failed(self, failed: s.ConnectFailed, now_ms: int) -> list[WorkerEffect]:
        if failed.finished and self._requests.is_done and not self._departure.ended_in_order:
            # It was cut off as its job ended, and nobody is there any more to say so.
            text = f"no scheduler answers, and its store says that the job has finished ({failed.finished})"
            return [Log("job_is_finished", text), *self._end("", failed.finished)]
        outside, member = self._main_thread.state is WorkerState.OUTSIDE, self.admitted is not None
        limit_ms = backoff.unreachable_limit_ms(
            self._rules, leaving=self._leaving, member=member, trains_on=self._trains_on()
        )
        outcome = self._connection.on_connect_failed(failed, now_ms, outside=outside, limit_ms=limit_ms)
        done = self._requests.done_step
        if isinstance(outcome, GivenUp) and self._checkpoints.all_hold(done) and not self._leaving:
            # Where the scheduler's store is not to be seen from here: nothing is left that a job could still do.
            text = f"{outcome.reason}; all ranks hold step {done}, behind which training is done: this process ends with success"
            return [Log("end_not_heard", text, warning=True), *self._end("", text)]
        return self._follow(outcome)

    def _trains_on(self) -> bool:
        """Does one step follow the other without a scheduler? Not before the world has met, after a pause, nor when done."""
        waits = self._requests.is_done or self._heartbeats.awaits_confirmation
        return self._main_thread.world_has_met and not waits

    def _follow(self, outcome: list[WorkerEffect] | GivenUp) -> list[WorkerEffect]:
        if isinstance(outcome, GivenUp):
            if self._departure.ended_in_order:
                # The scheduler of a finished job ends before scripts that go on, so there is nobody to dial any more.
                return []
            return [*outcome.before, *self._departure.not_told(), *self._end(outcome.code, outcome.reason)]
        return outcome

    def _on_received(self, received: m.Received) -> list[WorkerEffect]:
        match answered := self._requests.answered(received.request_id):
            case m.Failure() | m.Leave():
                return [self._departure.exit()]
            case m.CheckpointReport():
                return [*self._requests.send_next(), *self._requests.send_done_if_due()]
            case m.CheckpointInvalid() | m.NotSaved() | CopyReport() | CopyFailed() | UploadReport():
                return self._requests.send_next()
            case m.Done() | None:
                return []
            case _:
                assert_never(answered)

    def _on_heartbeat_due(self, fired: s.TimerFired, now_ms: int) -> list[WorkerEffect]:
        phase = self._main_thread.progress.newest.phase
        waits_ms = backoff.next_heartbeat_ms(fired.jitter, self._rules, phase)
        again = SetTimer(s.WorkerTimer.HEARTBEAT, now_ms + waits_ms)
        beat = [self._heartbeat()] if self._connection.is_admitted else []
        return [*beat, *self._main_thread.note_progress(now_ms, self.admitted), again]

    def _heartbeat(self) -> Send:
        return self._heartbeats.send(self._main_thread.progress.newest)

    def _on_pause_noticed(self, noticed: s.PauseNoticed) -> list[WorkerEffect]:
        """The process was paused for a good part of its lease: it may be fenced, so it asks before it steps or saves."""
        self._heartbeats.ask_for_confirmation()
        text = f"this process was paused for {noticed.paused_ms / 1000:.1f} s; asking whether its place is still its own"
        beat = [self._heartbeat()] if self._connection.is_admitted else []
        return [Log("paused", text, warning=True), *beat]

    def _on_admitted(self, admitted: m.Admitted, now_ms: int) -> list[WorkerEffect]:
        before, self._plans.admitted = self.admitted, admitted
        watched = self._connection.on_admitted(admitted, now_ms)
        self._checkpoints.admitted(admitted)
        self._main_thread.admit()
        is_known = before is not None and admitted.resumed and before.job == admitted.job
        next_ = self._resume(admitted, now_ms) if is_known else self._join(admitted, now_ms)
        differs = [Log("program_differs", admitted.differs, warning=True)] if admitted.differs else []
        return [*watched, *differs, *self._barrier.on_admitted(), *next_]

    def _resume(self, admitted: m.Admitted, now_ms: int) -> list[WorkerEffect]:
        """The scheduler knows this incarnation: say again what may have been lost on the way."""
        # Requests before Ready: a checkpoint that is not usable must be known before the next plan.
        again = [
            *self._main_thread.send_again(),
            *self._barrier.send_again(),
            *self._requests.send_all(now_ms),
            *self._checkpoints.send_ready(),
        ]
        if self._heartbeats.awaits_confirmation or self._main_thread.in_generation:
            # How far it is: a scheduler that was restarted knows where it began.
            again.append(self._heartbeat())
        return [Log("resumed", "the scheduler knows this process again"), *again, *self._checkpoints.retain()]

    def _join(self, admitted: m.Admitted, now_ms: int) -> list[WorkerEffect]:
        """This process is a new incarnation to the scheduler."""
        self._checkpoints.joined()
        self._fetches.forget_plan()
        beat = SetTimer(s.WorkerTimer.HEARTBEAT, now_ms + backoff.next_heartbeat_ms(0.0, self._rules))
        if self._main_thread.in_generation:
            # The scheduler's store is not the one that knew this process; nor is what it trained of that one's run.
            next_ = self._main_thread.interrupt(
                "the scheduler admitted this process as a new one", now_ms, None
            )
        else:
            next_ = self._plans.wait_for_next(now_ms)
        return [NoteAdmission(admitted), beat, *next_, *self._requests.send_all(now_ms)]

    # --- what the main thread does -----------------------------------------------------------------------------------------

    def _on_abort_due(self, now_ms: int) -> list[WorkerEffect]:
        outcome = self._main_thread.on_abort_due(RequestId(f"{self._connection.register_id}.hung"))
        if isinstance(outcome, m.Failure):
            return self._leave_with(outcome, "PROCESS_HUNG", outcome.error, now_ms)
        if outcome is not None and self._barrier.leaves:
            return self._end(STOPPED, outcome.reason)
        return [outcome] if outcome is not None else []

    def _on_training_stopped(self, stopped: s.TrainingStopped, now_ms: int) -> list[WorkerEffect]:
        if self._leaving:
            return []
        effects = self._main_thread.on_stopped(stopped, now_ms, self.admitted)
        self._requests.forget_done()
        return [*effects, *self._plans.follow_next(now_ms)]

    def _on_training_done(self, done: s.TrainingDone, now_ms: int) -> list[WorkerEffect]:
        request = m.Done(request_id=done.request_id, generation=done.generation, step=done.step)
        return [*self._requests.finish(request, now_ms), *self._wait.begin("all ranks to be done", now_ms)]

    # --- the end -------------------------------------------------------------------------------------------------------

    def _on_store_refused(self, refused: s.StoreRefused, now_ms: int) -> list[WorkerEffect]:
        leave = leave_of(refused.request_id, refused.reason)
        return self._leave_with(leave, refused.code, refused.reason, now_ms)

    def _leave_with(
        self, last: m.Failure | m.Leave, code: str, reason: str, now_ms: int
    ) -> list[WorkerEffect]:
        self._main_thread.leave()
        self._fetches.forget_plan()
        return self._departure.begin(last, code, reason, now_ms, admitted=self.admitted is not None)

    def _end(self, code: str, reason: str) -> list[WorkerEffect]:
        self._wait.end()
        self._fetches.forget_plan()
        return [self._departure.exit(code, reason), *self._main_thread.end(reason)]
