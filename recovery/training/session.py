"""One generation of training, as the training function sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from recovery.checkpoint.position import Position
from recovery.core.messages import Admitted, HeldCheckpoint, Rollback
from recovery.core.phases import Phase
from recovery.core.worker import stimuli as s
from recovery.training.early_exit import LoopWatch
from recovery.training.failed_saves import FailedSaves
from recovery.training.known_commits import KnownCommits
from recovery.training.live_rollback import LiveRollback
from recovery.training.outlook import End, LossTold, steps_of_epoch
from recovery.training.planned_checkpoint import PlannedCheckpoint, for_manifest
from recovery.training.state import Loss, RestorableState, TakesPosition, TrainingState, next_pass, only_state
from recovery.training.step_log import StepLog
from recovery.training.training_stop import TrainingStop
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")
_Made = TypeVar("_Made")


class Callback:
    """Base of callbacks: override what you need. All run in the main thread, between two steps."""

    saves_state = False
    """True: its `on_step_end` runs behind that of all others, so that what they do at a step is in what it saves of it."""

    changes_state = True
    """False: it leaves the training state as it is, so that live rollback need not look at it again behind `on_step_end`."""

    def on_begin(self, session: Session) -> None:
        """The generation's state is loaded; the first step comes next."""

    def on_step_end(self, session: Session) -> None:
        """A step is applied: `session.step`, `session.epoch`, `session.step_in_epoch`, `session.loss` are its values."""

    def on_end(self, session: Session) -> None:
        """The last step of the last epoch is applied, or that at which `session.stop()` has ended training."""


class Session(KnownCommits):
    """Rank, plan and position of one generation. The training function gets a new one at every entry.

    Attributes:
        rank: position in the world, 0..world_size-1.
        world_size: number of ranks.
        local_rank, local_world_size: the same among the ranks of this host.
        generation: number of this entry, 1-based.
        incarnation: of this node id, 1-based: how many processes have held it, this one included.
        run, job: the run and the job of the recovery path.
        step: steps applied so far, over all epochs: in the loop over `steps` one less than the step that it yields.
        epoch: the current pass over the data, 1-based; behind the last one still that.
        step_in_epoch: steps applied in that pass.
        loss: what the loop has reported last: float32 [] or a number; None before the first report.
        total_steps: with how many steps training is over, for people; 0: not known. A loop that is not `steps` may say it.
        recovery_enabled: MS_ENABLE_RECOVERY=1: checkpoints are kept for a rollback.
        recovery_path: where this process's store is; None when recovery is off.
        memory, compares_replicas: what the environment says about checkpoints in memory; whether saves say what all ranks must have alike.
        loop_watch, training_stop, phases: whether training is inside its loop, `stop`, and in which part of a step it is; for integrations.
    """

    def __init__(
        self, service: WorkerService, plan: Rollback, admitted: Admitted, live: LiveRollback | None = None
    ) -> None:
        """Made by the run loop."""
        self._live = live or LiveRollback(service, why_not="a script starts its program again")
        self._live.enter(plan)
        super().__init__(service, plan)
        self.rank, self.world_size = int(plan.rank), plan.world_size
        self.local_rank, self.local_world_size = plan.local_rank, plan.local_world_size
        self.incarnation = int(admitted.incarnation)
        self.job, self.run = admitted.job, int(plan.run)
        self.step, self.step_in_epoch = plan.step, plan.step_in_epoch
        self.epoch = plan.epoch or 1
        self._position = Position(step=plan.step, epoch=max(0, plan.epoch - 1), batch=plan.step_in_epoch)
        self.recovery_enabled, self.compares_replicas = service.recovery_enabled, service.compares_replicas
        self.recovery_path, self.memory = service.local_store.recovery_path, service.memory
        self.loss: Loss | None = None
        self.total_steps, self._told = 0, LossTold()
        self.state: TrainingState | None = None
        self.versions: dict[str, str] = {}
        self.loop_watch = LoopWatch()
        self._planned = PlannedCheckpoint(service, plan, admitted.job)
        self.training_stop = TrainingStop(service, plan.generation)
        self._first_step_reported, self._failed_saves = False, FailedSaves(service)
        self._savers: list[Callable[[], None]] = []
        self._settlers: list[Callable[[], None]] = []
        self._closers: list[Callable[[], None]] = []
        loads = plan.step > 0 and plan.live_rank is None
        self._step_log, self.phases = StepLog(service.step_log), service.phases.begin(loads=loads)
        service.progress = self._progress

    # --- training ------------------------------------------------------------------------------------------------------

    def steps(
        self,
        state: TrainingState,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, batch) from where the plan begins to the last batch of the last epoch, or to the last step.

        A step counts as applied when the loop asks for the next one: a `break` leaves its last step uncounted and unsaved, `stop` does not.

        Args:
            state: everything that decides the next step; it is loaded from the plan's checkpoint first.
            epochs: passes over the data in all, at least 1, counted from the first start of training and not from the plan.
            max_steps: steps in all, at least 1, counted likewise. Training is over with whichever comes first.
            callbacks: called after every step, in order; those that save (ModelCheckpoint) behind all others.

        Yields:
            The step that the batch is for (1-based, over all epochs): `session.step + 1`, which counts those that are done. And the batch as
            the state's loader gives it.

        Raises:
            GenerationInterrupted: the generation is over; leaves the training function, which is then entered again.
            CheckpointStateError: the plan's checkpoint does not fit `state`.
            SettingError: a ModelCheckpoint among the callbacks keeps too few files to recover.
            CheckpointError: as `applied`.
            UsageError: a second call in one entry, neither epochs nor max_steps, an end that lies behind what is done, or a pass that has another
                number of batches than on another rank.
        """
        self.state = only_state(self.state, state)
        with self.loop():
            try:
                yield from self._steps(state, End(epochs, max_steps), callbacks)
            except GeneratorExit:
                self.loop_watch.closed()
                raise

    def loop(self) -> AbstractContextManager[None]:
        """A block around a loop that is not `steps`: an exit that leaves it leaves training before its end."""
        return self.training_stop.around(self.loop_watch.inside(), self.phases.loop(), lambda: self.step)

    def _steps(
        self, state: TrainingState, end: End, callbacks: Sequence[Callback]
    ) -> Iterator[tuple[int, Any]]:
        self.restore(state)
        end.check(self._position)
        self.total_steps = end.steps(steps_of_epoch(state.batches))
        others = [one for one in callbacks if not one.saves_state]
        savers = [one for one in callbacks if one.saves_state]
        for callback in callbacks:
            callback.on_begin(self)
        self._live.loaded()
        may_change = any(callback.changes_state for callback in others)
        while not (end.is_reached(self._position) or self.training_stop.is_over(self.step)):
            self.epoch, self.step_in_epoch = self._position.epoch + 1, self._position.batch
            for batch in self.phases.batches(next_pass(state)):
                self.check()
                yield self.step + 1, batch
                self.phases.enter(Phase.OWN_CODE)
                self.loop_watch.step_wanted()
                at = self._position
                self._live.boundary(at.step + 1, at.epoch + 1, at.batch + 1)
                self.check()
                self.applied(step=at.step + 1, epoch=at.epoch + 1, step_in_epoch=at.batch + 1)
                if others:
                    self._live.before_callbacks(self.step, may_change=may_change)
                    for callback in others:
                        callback.on_step_end(self)
                    self._live.behind_callbacks(self.step, may_change=may_change)
                self.training_stop.agree(self.step)
                self.phases.enter(Phase.SAVE)
                for callback in savers:
                    callback.on_step_end(self)
                self.stop_if_asked()
                if self.training_stop.is_over(self.step) or end.is_last(self.step):
                    break
                self._live.next_step(self.step)
            else:
                self._position = self._position.next_epoch()
        self.training_stop.log(self.step)
        self.phases.end()
        for callback in (*others, *savers):
            callback.on_end(self)

    def stop(self, reason: str = "") -> None:
        """End training early, on all ranks, at one step, which is saved last: call it on one rank or on all, then let the loop go on.

        Called on all ranks in the same step, training ends with it; called on one, with it or as soon as all ranks stop at the same. The
        loop over `steps` ends by itself there, and whatever dies behind it, no further step is trained.

        Args:
            reason: for people, in the log, in the events and at the end of the job.

        Raises:
            UsageError: a framework leads this training, which ends as that does.
        """
        self.training_stop.ask(reason)

    @property
    def stopped(self) -> bool:
        """Has `stop` ended training at this step? A loop that is not `steps` ends then."""
        return self.training_stop.is_over(self.step)

    def report(self, *, loss: Loss) -> None:
        """Hand this step's loss to the callbacks. Nothing waits for the device until somebody prints it.

        Args:
            loss: float32 [] on any device, or a number. A tensor is detached, so that its graph does not live until the next step.
        """
        self.loss = self._told.note(loss.detach() if hasattr(loss, "detach") else loss)

    def check(self) -> None:
        """See whether the generation goes on; costs about a microsecond.

        Raises:
            GenerationInterrupted: it is over.
        """
        self._service.training_control.check(self.generation)

    def restore(self, state: RestorableState) -> None:
        """Load the plan's checkpoint into `state`, verified, or let it begin at step 0. `steps` does it by itself.

        Args:
            state: what a checkpoint of this rank fits into.

        Raises:
            GenerationInterrupted: the file is not what it was saved as; another plan follows.
            CheckpointStateError: it does not fit the state.
        """
        self.versions = for_manifest(state)
        self._live.prepare(state, steps_are_ours=state is self.state)
        if self.plan_is_live:
            if self._plan.path:
                # The other ranks have lost theirs, and take this one's.
                self._planned.load(state)
            self._live.take(state)
            self._take_position(state, None)
            return
        if self._plan.step:
            self._take_position(state, self._planned.load(state))
        else:
            state.begin()
        self._service.post(s.StateRestored(self._plan.generation, not_live=self._live.not_live))

    @property
    def plan_is_live(self) -> bool:
        """Is the state of this entry still to come from a survivor's memory (MS_ROLLBACK=live)? Else it is a checkpoint's, or new."""
        return self._live.awaits_state

    def keep(self, make: Callable[[], _Made], name: str = "") -> _Made:
        """Have something made once, such as the model, DistributedDataParallel around it or what is compiled: it is the last entry's where `plan_is_live`.

        Else it is made again, as where a part fits no other world (`event=kept_let_go`). What training changes in it must be in the training state too.

        Args:
            make: makes it.
            name: tells it from what else is kept.
        """
        return self._live.keep(name, make)

    @property
    def position(self) -> Position:
        """Where training stands: what a checkpoint of now is a checkpoint of."""
        return msgspec.structs.replace(self._position, samples=getattr(self.state, "samples_in_epoch", 0))

    def _take_position(self, state: RestorableState, saved: Position | None) -> None:
        """Go on where the checkpoint stands, and have the state stand there too."""
        self._position, self.versions = saved or self._position, for_manifest(state)
        if isinstance(state, TakesPosition):
            self._position = state.take_position(self._position, exact=saved is not None)

    @property
    def resume_from(self) -> Path | None:
        """The folder that a framework wrote and that training goes on from, verified; None: training begins.

        What is in it is for the training function to load, before `steps`. `step`, `epoch` and `step_in_epoch` stand where it was saved.

        Raises:
            GenerationInterrupted: it is not what it was saved as; another plan follows.
            CheckpointStateError: the plan goes back to a file that ModelCheckpoint saved, which `steps` loads by itself.
        """
        return self._planned.folder(self.versions) if self._plan.step else None

    def applied(self, *, step: int, epoch: int, step_in_epoch: int) -> None:
        """A step is applied. `steps` counts by itself; a loop that is not ours calls this after each of its own.

        Args:
            step: over all epochs, 1-based.
            epoch: the pass that the step belongs to, 1-based.
            step_in_epoch: the step in that pass, 1-based.

        Raises:
            CheckpointError: as many saves in a row as MS_FAILED_SAVES_MAX allows have failed on this rank.
            UsageError: `stop` has ended training before this step.
        """
        self._failed_saves.check()
        self.training_stop.refuse_more(step)
        stop_point = self._service.training_control.stop_point
        if not stop_point.passes(self.step) and stop_point.saves:
            self._cannot_save("its loop does not call session.stop_if_asked()")
        self.step, self.epoch, self.step_in_epoch = step, epoch, step_in_epoch
        self._position = Position(step=step, epoch=epoch - 1, batch=step_in_epoch)
        self.phases.stepped()
        if self._step_log.is_open:
            self._step_log.append(self)
        if not self._first_step_reported:
            self._first_step_reported = True
            self._service.post(self._progress())

    def _progress(self) -> s.StepsDone:
        done = (self._plan.generation, self.step, self.epoch, self.step_in_epoch, self.total_steps)
        return s.StepsDone(*done, loss=self._told.value, phase=self.phases.report())

    def read_loss(self) -> float | None:
        """The loss that was reported last, as a number; it waits for the device, and then `recovery status` has it too. None: there is none."""
        return None if self.loss is None else self._told.read(self.loss)

    def stop_if_asked(self) -> None:
        """Save and wait here, if a rank is to be handed over at this step. `steps` asks by itself; another loop calls this after `applied`.

        Where `stop` was called it waits until all ranks stop at one step; the loop ends if `stopped` is true then.

        Raises:
            GenerationInterrupted: the generation is over; usually the next one begins here, with a standby in the place of a rank.
        """
        control = self._service.training_control
        self.training_stop.agree(self.step)
        if self.stopped or control.stop_point.passes(self.step):
            return
        if control.stop_point.saves:
            for save in self._savers:
                save()
            if not self._savers:
                self._cannot_save("nothing that can save out of turn is known here")
        control.await_go_on(self.generation, self.step)

    def _cannot_save(self, why: str) -> None:
        self._service.post(s.Positioned(self._plan.generation, self.step, step=self.step, obstacle=why))

    def refuse_drains(self, reason: str) -> None:
        """This training cannot stop at a step that is asked for, so its rank is never handed over; the reason is for people."""
        self._service.training_control.drain_unsupported_reason = reason

    # --- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint_published(self, checkpoint: HeldCheckpoint, replica: Mapping[str, str] = {}) -> None:
        """A checkpoint of this rank is complete and durable: it counts from now on. `replica`: what all ranks must have alike in it."""
        self._failed_saves.saved(checkpoint)
        self._service.post(s.CheckpointPublished(self._service.new_request(), checkpoint, replica))

    def checkpoint_not_saved(self, step: int, reason: str, *, in_memory: bool = False) -> None:
        """A save of this rank failed: an event says why, `recovery status` counts it, and training goes on. Any thread."""
        self._failed_saves.failed(step, reason, in_memory=in_memory)

    def save_when_asked(self, save: Callable[[], None]) -> None:
        """Have `save` called in the main thread where a rank is handed over: it saves this step, unless that was done."""
        self._savers.append(save)

    def still_owns_rank(self) -> bool:
        """Before a save is given its name: a process that was paused meanwhile asks whether it was replaced. Any thread; may wait."""
        return self._service.training_control.still_owns_rank()

    def checkpoint_directory(self, directory: Path, prefix: str) -> None:
        """Remember that training saves files of this prefix here (absolute): this node's next incarnation looks here."""
        self._service.local_store.add_directory(directory, prefix, self._plan.run)

    def before_done(self, settle: Callable[[], None]) -> None:
        """Have `settle` called in the main thread before this rank is reported done: what it has begun is then over."""
        self._settlers.append(settle)

    def settle(self) -> None:
        """Called by the run loop: let what training has begun come to its end.

        Raises:
            CheckpointError: what was trained last is not saved.
            UsageError: `stop` was called, and the loop left before it could be carried out.
        """
        self.training_stop.check_left(in_loop=self.loop_watch.in_loop)
        while self._settlers:
            self._settlers.pop()()
        self._failed_saves.check_last()

    def on_generation_end(self, close: Callable[[], None]) -> None:
        """Have `close` called in the main thread after the training function was left, last registered first."""
        self._closers.append(close)

    def close(self) -> None:
        """Called by the run loop: end what belongs to the generation."""
        self._service.training_control.forget_wakers()
        while self._closers:
            try:
                self._closers.pop()()
            except Exception:
                _logger.exception("event=close_failed generation=%d", self.generation)
        self._step_log.close()
