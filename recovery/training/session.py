"""One generation of training, as the training function sees it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from recovery import clock
from recovery.checkpoint import verify
from recovery.core.ids import Generation
from recovery.core.messages import Admitted, HeldCheckpoint, Rollback
from recovery.core.worker import stimuli as s
from recovery.errors import CheckpointError, GenerationInterrupted
from recovery.training import early_exit
from recovery.training.early_exit import EarlyExit
from recovery.training.state import RestorableState, TrainingState
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")


class Loss(Protocol):
    """A number or a one-element tensor."""

    def __float__(self) -> float:
        """Its value; for a tensor this waits for the device."""
        ...


class Callback:
    """Base of callbacks: override what you need. All run in the main thread, between two steps."""

    def on_begin(self, session: Session) -> None:
        """The generation's state is loaded; the first step comes next."""

    def on_step_end(self, session: Session) -> None:
        """A step is applied: `session.step`, `session.epoch`, `session.step_in_epoch`, `session.loss` tell which."""

    def on_end(self, session: Session) -> None:
        """The last step of the last epoch is applied."""


class Session:
    """Rank, plan and position of one generation. The training function gets a new one at every entry.

    Attributes:
        rank: position in the world, 0..world_size-1.
        world_size: number of ranks.
        local_rank, local_world_size: the same among the ranks of this host.
        generation: number of this entry, 1-based.
        incarnation: which life of this node id the process is, 1-based.
        run, job: the run and the job of the recovery path.
        step: steps applied so far, over all epochs. epoch: 1-based pass. step_in_epoch: steps applied in it.
        in_loop: has a loop over `steps` begun that has not come to its end?
        watches_exits, left: for scripts that are their own loop: whether to look for an exit that leaves `steps`, and what was found.
    """

    def __init__(self, service: WorkerService, plan: Rollback, admitted: Admitted) -> None:
        """Made by the run loop."""
        self._service, self._plan = service, plan
        self.rank, self.world_size = int(plan.rank), plan.world_size
        self.local_rank, self.local_world_size = plan.local_rank, plan.local_world_size
        self.generation, self.incarnation = int(plan.generation), int(admitted.incarnation)
        self.job, self.run = admitted.job, int(plan.run)
        self.step, self.step_in_epoch = plan.step, plan.step_in_epoch
        self.epoch = plan.epoch or 1
        self.recovery_enabled = service.recovery_enabled
        self.loss: Loss | None = None
        self.state: TrainingState | None = None
        self.versions: dict[str, str] = {}
        self._told_first_step = False
        self.watches_exits = False
        self.left: EarlyExit | None = None
        self.in_loop = self._closed = self._ended = False
        self._settlers: list[Callable[[], None]] = []
        self._closers: list[Callable[[], None]] = []
        self._step_log = _open_log(service.step_log)
        service.progress = self._progress

    # --- training ------------------------------------------------------------------------------------------------------

    def steps(
        self, state: TrainingState, *, epochs: int, callbacks: Sequence[Callback] = ()
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, batch) from where the plan begins to the last batch of the last epoch.

        A step counts as applied when the loop asks for the next one. Leave the loop only by its end: a `break` leaves its
        last step uncounted.

        Args:
            state: everything that decides the next step; it is loaded from the plan's checkpoint first.
            epochs: passes over the data in all, 1-based, not counting from the plan.
            callbacks: called after every step, in order.

        Raises:
            GenerationInterrupted: the generation is over; leaves the training function, which is then entered again.
        """
        with self.loop():
            try:
                yield from self._steps(state, epochs, callbacks)
            except GeneratorExit:
                # A loop that keeps the iterator under a name closes it later than the exit that left it: that one stays.
                if self.watches_exits and self.left is None:
                    self.left = early_exit.leaving()
                self._closed = True
                raise

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Training runs inside: an exit that leaves the block leaves training before its end."""
        self.in_loop, self._closed, self.left = True, False, None
        try:
            yield
        except SystemExit as error:
            self.left = early_exit.seen(error)
            raise
        self.in_loop, self._ended = False, True

    def note_exit(self, error: SystemExit, at: FrameType) -> None:
        """`sys.exit` was called: inside the loop, or with the code of a failure before any loop has come to its end.

        It counts until another step is asked for, or a loop begins: then somebody has caught it.
        """
        left = early_exit.seen(error, at=at)
        if (self.in_loop and not self._closed) or not (self.in_loop or self._ended or left.succeeds):
            self.left = left

    def _steps(
        self, state: TrainingState, epochs: int, callbacks: Sequence[Callback]
    ) -> Iterator[tuple[int, Any]]:
        self.state = state
        self.restore(state)
        for callback in callbacks:
            callback.on_begin(self)
        while True:
            for batch in state.batches:
                self.check()
                yield self.step + 1, batch
                self.left = None
                self.check()
                self.applied(step=self.step + 1, epoch=self.epoch, step_in_epoch=self.step_in_epoch + 1)
                for callback in callbacks:
                    callback.on_step_end(self)
            if self.epoch >= epochs:
                break
            self.epoch, self.step_in_epoch = self.epoch + 1, 0
        for callback in callbacks:
            callback.on_end(self)

    def report(self, *, loss: Loss) -> None:
        """Tell the callbacks this step's loss: float32 [] or a number. Nothing waits for the device until somebody prints it."""
        self.loss = (
            loss.detach() if hasattr(loss, "detach") else loss
        )  # no graph is kept alive until the next step

    def check(self) -> None:
        """Look whether the generation goes on; costs about a microsecond.

        Raises:
            GenerationInterrupted: it is over.
        """
        self._service.gate.check(self.generation)

    @property
    def plan_generation(self) -> Generation:
        """The generation as the machines name it."""
        return self._plan.generation

    @property
    def committed_step(self) -> int:
        """Newest step that every rank holds, as far as this rank has heard."""
        return self._service.gate.committed_step

    @property
    def committed_before(self) -> int:
        """The newest global step but one that every rank holds; 0 while fewer than two are known in this generation."""
        return self._service.gate.committed_before

    def restore(self, state: RestorableState) -> None:
        """Load the plan's checkpoint into `state`, verified, or tell it that it begins. `steps` does it by itself.

        Raises:
            GenerationInterrupted: the file is not what it was saved as; another plan follows.
            CheckpointStateError: it does not fit the state.
        """
        self.versions = state.versions()
        if self._plan.step:
            self._load(state)
        else:
            state.begin()
        self._service.post(s.StateRestored(self._plan.generation))

    def _load(self, state: RestorableState) -> None:
        path = Path(self._plan.path)
        try:
            verify.check_wanted(
                path,
                verify.Wanted(
                    job=self.job,
                    run=self.run,
                    rank=self.rank,
                    world_size=self.world_size,
                    step=self._plan.step,
                    digest=self._plan.digest,
                ),
            )
        except CheckpointError as error:
            self._reject(str(error))
        state.read(path)
        _logger.info(
            "event=restored rank=%d generation=%d step=%d path=%s",
            self.rank,
            self.generation,
            self.step,
            path,
        )

    def _reject(self, reason: str) -> None:
        """Report the plan's file as unusable and wait for the next plan, which is the next older common step."""
        self._service.post(
            s.CheckpointRejected(
                self._service.new_request(), self._plan.generation, self._plan.step, self._plan.path, reason
            )
        )
        self._service.gate.await_end(self._plan.generation)
        raise GenerationInterrupted(self.generation, reason)

    def applied(self, *, step: int, epoch: int, step_in_epoch: int) -> None:
        """A step is applied. `steps` counts by itself; a loop that is not ours calls this after each of its own."""
        self.step, self.epoch, self.step_in_epoch = step, epoch, step_in_epoch
        if self._step_log is not None:
            self._log_step(self._step_log)
        if not self._told_first_step:
            self._told_first_step = True
            self._service.post(self._progress())

    def _progress(self) -> s.StepsDone:
        return s.StepsDone(self._plan.generation, self.step, self.epoch, self.step_in_epoch)

    def _log_step(self, descriptor: int) -> None:
        line = {
            "generation": self.generation,
            "incarnation": self.incarnation,
            "rank": self.rank,
            "step": self.step,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "wall_ms": clock.wall_ms(),
        }
        os.write(descriptor, json.dumps(line).encode() + b"\n")

    # --- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint_published(self, checkpoint: HeldCheckpoint) -> None:
        """A checkpoint of this rank is complete and durable: it counts from now on."""
        self._service.post(s.CheckpointPublished(self._service.new_request(), checkpoint))

    def place_is_ours(self) -> bool:
        """Before a save is given its name: a process that stood still meanwhile asks whether it was replaced. Any thread; may wait."""
        return self._service.gate.place_is_ours()

    def checkpoint_directory(self, directory: Path, prefix: str) -> None:
        """Training saves here: this node's next incarnation looks here."""
        self._service.notebook.add_directory(directory, prefix, self._plan.run)

    # --- the data plane ------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """This process's own address, as its peers reach it."""
        return self._service.host

    @property
    def control_inode(self) -> int | None:
        """Inode of the connection to the scheduler: whoever closes a world's sockets leaves this one alone."""
        return self._service.control_inode

    @property
    def interrupted(self) -> bool:
        """Is the generation over?"""
        return self._service.gate.is_interrupted(self.generation)

    def publish_rendezvous(self, address: str) -> None:
        """Rank 0: tell the others where this generation's world is formed. Only once something listens there."""
        self._service.post(s.RendezvousOpened(self._plan.generation, address))

    def await_rendezvous(self) -> str:
        """Other ranks: wait for rank 0's address.

        Raises:
            GenerationInterrupted: the generation ended first.
        """
        return self._service.gate.await_rendezvous(self.generation)

    def on_interrupt(self, wake: Callable[[], None]) -> None:
        """Have `wake` called from another thread when the generation ends: it must free a main thread that sits in a collective."""
        self._service.gate.on_interrupt(wake)

    def replace_process(self, reason: str) -> None:
        """Start this process's command line again, as the same incarnation: for a framework that cannot leave a world otherwise.

        From any thread; it returns only where the process must end instead.
        """
        if self._service.gate.verdict_if_any() is None:
            self._service.replace_process(reason)

    def before_done(self, settle: Callable[[], None]) -> None:
        """Have `settle` called in the main thread before this rank says that it is done: what it has begun is then over."""
        self._settlers.append(settle)

    def settle(self) -> None:
        """Called by the run loop: let what training has begun come to its end."""
        while self._settlers:
            self._settlers.pop()()

    def on_generation_end(self, close: Callable[[], None]) -> None:
        """Have `close` called in the main thread after the training function was left, last registered first."""
        self._closers.append(close)

    def close(self) -> None:
        """Called by the run loop: end what belongs to the generation."""
        self._service.gate.forget_wakers()
        while self._closers:
            try:
                self._closers.pop()()
            except Exception:
                _logger.exception("event=close_failed generation=%d", self.generation)
        if self._step_log is not None:
            with contextlib.suppress(OSError):
                os.close(self._step_log)
            self._step_log = None


def _open_log(path: Path | None) -> int | None:
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
