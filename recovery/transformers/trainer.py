"""transformers' Trainer that goes on at the plan's step, and whose folders are rollback targets.

Five facts of transformers 5.24 shape this package.

1. `resume_from_checkpoint=True` takes the newest folder that is there, finished or not, held by all ranks or not.
2. `save_total_limit` removes folders before the new one is durable, by the time of their directory, which a folder that is written again
   keeps. So the limit is taken over: a folder goes when two newer ones are committed, and none that another names as its best model.
3. A folder of an epoch's last step is saved before what the epoch ends with (its evaluation, `on_epoch_end`), and a resume begins the next
   epoch: all that would be left out. So that save is moved behind it (step_callback.py). One that its evaluation asks for
   (`save_strategy="best"`) cannot be: training goes on from there with the epoch's end, without a step.
4. A folder of a training's last step, gone on from within an epoch, trains one step more; one that a callback has stopped trains on.
5. A training set without a length is one endless epoch to a resume, however often it has come to its end.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import transformers
from transformers.integrations import TensorBoardCallback

from recovery.accelerate import joined_world, random_position  # noqa: F401 - joins the world
from recovery.accelerate.random_position import Saved
from recovery.checkpoint import catalogue
from recovery.core.phases import Phase
from recovery.torch.trainer_options import TrainerOptions, check_size
from recovery.training import earlier_jobs
from recovery.training.changed_since import Override
from recovery.training.current import current_session
from recovery.training.outlook import check_steps
from recovery.training.session import Session
from recovery.transformers import training_arguments
from recovery.transformers.step_callback import Steps

_EVENTS = "events.out.tfevents.*"


class Recovered:
    """For a Trainer of one's own: `class MyTrainer(Recovered, SFTTrainer)`.

    Outside a function that `recovery.transformers.run` made recoverable it changes nothing.
    """

    args: Any
    state: Any
    callback_handler: Any

    def __init__(self, *options: Any, recovery_override: Override | None = None, **named: Any) -> None:
        """As the Trainer that it stands before.

        Args:
            options: its arguments.
            recovery_override: what a checkpoint does not decide where the script builds it otherwise than before: `{"optimizer": ["lr"]}`.
            named: its arguments.

        Raises:
            UsageError: its arguments ask for what cannot be gone back to.
        """
        parent: Any = super()
        parent.__init__(*options, **named)
        session = current_session()
        self._recovery: tuple[Any, Steps] | None = None
        self._resumed: Saved | None = None
        """What this rank saved in the folder that is gone on from; empty: nothing of ours; None: training begins."""
        if session is None:
            return
        training_arguments.check(self.args)
        session.refuse_drains("the Trainer saves at the steps that its arguments name, and not out of turn")
        self._override = recovery_override
        session.versions = training_arguments.versions()
        steps = Steps(self, session, keep=training_arguments.take_limit(self.args))
        self._recovery = session, steps
        self.callback_handler.add_callback(steps)

    def train(self, resume_from_checkpoint: str | bool | None = None, *options: Any, **named: Any) -> Any:
        """Train, from the folder that all ranks hold; before there is one, from the one that `resume_from_checkpoint` names.

        Raises:
            CheckpointError: another job's checkpoints lie in `output_dir`.
            GenerationInterrupted: the generation is over; leaves the training function, which is then entered again.
            UsageError: a second call, or a folder that cannot be begun from.
        """
        parent: Any = super()
        if self._recovery is None:
            return parent.train(resume_from_checkpoint, *options, **named)
        session, steps = self._recovery
        steps.begin()
        folder = session.resume_from
        if folder is None:
            earlier_jobs.check(session, Path(self.args.output_dir).absolute(), catalogue.FOLDERS)
            asked, is_first = resume_from_checkpoint, session.generation == 1
            begins_from = training_arguments.beginning(self.args, asked, is_first=is_first)
        else:
            begins_from = str(folder)
            self._resumed = random_position.read(folder, rank=session.rank) or {}
            # A callback that stops training counts what it has seen, and that is not loaded unless it is asked for.
            self.args.restore_callback_states_from_checkpoint = True
            # It was done; a second time it would count as one more without a better model.
            self.args.eval_on_start = False
        trainer: Any = self
        session.phases.models = lambda: [trainer.model]
        with session.loop():
            return parent.train(begins_from, *options, **named)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """Save, and say that this is what takes its time."""
        parent: Any = super()
        if self._recovery is None:
            return parent._save_checkpoint(*arguments, **named)  # noqa: SLF001 - its own
        with self._recovery[0].phases.during(Phase.SAVE):
            return parent._save_checkpoint(*arguments, **named)  # noqa: SLF001 - as above

    def set_initial_training_values(self, *options: Any, **named: Any) -> Any:
        """Note how many epochs there are, and steps in one."""
        parent: Any = super()
        values = parent.set_initial_training_values(*options, **named)
        if self._recovery is not None:
            steps = self._recovery[1]
            steps.num_epochs, steps.updates_per_epoch = values[0], values[1]
        return values

    def _init_training_state(self, max_steps: int, *options: Any, **named: Any) -> tuple[int, int]:
        """Say in which epoch training goes on, and behind which of its batches: facts 4 and 5."""
        parent: Any = super()
        epoch, batches = parent._init_training_state(max_steps, *options, **named)  # noqa: SLF001 - its own
        if self._recovery is None:
            return epoch, batches
        session, steps = self._recovery
        # Callbacks whose state was loaded stand behind all others now.
        self.callback_handler.remove_callback(steps)
        self.callback_handler.add_callback(steps)
        resumed = self._resumed
        if resumed:
            check_steps(self.state.global_step, max_steps, field="num_train_epochs or max_steps, in steps")
            epoch, batches = resumed["epoch"], resumed["batches"]
        is_over = resumed is not None and bool(resumed.get("is_over") or self.state.global_step >= max_steps)
        if resumed and resumed.get("is_closing"):
            batches = steps.updates_per_epoch * self.args.gradient_accumulation_steps
        elif is_over:
            epoch, batches = steps.num_epochs, 0
        updates = batches // self.args.gradient_accumulation_steps
        steps.stand(epoch, updates, resumed or None, stops=is_over)
        # What is logged at a step is logged before that step is saved.
        purge_step = self.state.global_step + (1 if resumed is not None else 0)
        go_on_in_tensorboard(self.callback_handler.callbacks, session, self.args.output_dir, purge_step)
        return epoch, batches

    def create_scheduler(self, *options: Any, **named: Any) -> Any:
        """Note what was prepared: the Trainer makes schedules behind it, and loads next."""
        parent: Any = super()
        if self._recovery is None:
            return parent.create_scheduler(*options, **named)
        session, steps = self._recovery
        steps.note_prepared()
        schedule = parent.create_scheduler(*options, **named)
        steps.options = TrainerOptions(
            {"optimizer": [steps.optimizer], "lr_scheduler": [schedule]},
            self._override,
            settings=training_arguments.settings(self),
            conditions=session.versions,
        )
        return schedule

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> Any:
        """Load the weights, if there are as many as were saved.

        Raises:
            CheckpointStateError: there are not.
        """
        parent: Any = super()
        if self._resumed:
            trainer: Any = self
            saved = self._resumed.get("options", {})
            check_size(saved, training_arguments.PARAMETERS, [model or trainer.model])
        return parent._load_from_checkpoint(folder, model)  # noqa: SLF001 - its own

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Add the groups of parameters that training had added before."""
        parent: Any = super()
        if self._recovery is not None and self._resumed:
            self._recovery[1].outside.make_room(self._resumed.get("outside", {}))
        parent._load_optimizer_and_scheduler(checkpoint)  # noqa: SLF001 - its own
        if self._recovery is not None and self._resumed:
            self._recovery[1].put_options(self._resumed)

    def get_batch_samples(self, epoch_iterator: Any, *options: Any, **named: Any) -> Any:
        """Fetch a step's batches, and look whether that draws."""
        parent: Any = super()
        if self._recovery is None:
            return parent.get_batch_samples(epoch_iterator, *options, **named)
        session, steps = self._recovery
        steps.draws.before_fetch(is_first=steps.is_first_fetch)
        session.phases.times.wants()
        fetched = parent.get_batch_samples(steps.drawn_again or epoch_iterator, *options, **named)
        session.phases.times.drawn()
        steps.draws.after_fetch()
        steps.is_first_fetch = False
        return fetched


def go_on_in_tensorboard(callbacks: list[Any], session: Session, output_dir: str, purge_step: int) -> None:
    """Have the Trainer's callback write where the one of the generation before did: one run of the job, whose files purge the steps made again.

    From `purge_step` on, all that generations before have logged counts no more. A writer or a directory that the script gave stays; the latter
    may hold other runs, which are not hidden as long as no generation of this run has written there.
    """
    owner = f".{session.job[:12]}-{session.run}"
    for callback in callbacks:
        if not isinstance(callback, TensorBoardCallback) or callback.tb_writer is not None:
            continue
        is_own = callback.logging_dir is None
        if is_own:
            # The Trainer's own name has the time of its start in it.
            callback.logging_dir = str(Path(output_dir) / "runs" / owner[1:])
        kind = callback._SummaryWriter  # noqa: SLF001 - there is no public way
        # In a folder of the run's own all is the run's, that of an earlier release, too, whose files have no such end of their names.
        ours = _EVENTS if is_own else f"{_EVENTS}{owner}"
        first = functools.partial(_first_writer, callback, kind, purge_step, owner, ours)
        callback._SummaryWriter = first  # noqa: SLF001 - as above
        # The Trainer closes it behind a training that has come to its end.
        session.on_generation_end(functools.partial(callback.on_train_end, None, None, None))


def _first_writer(callback: Any, kind: Any, purge_step: int, owner: str, ours: str, log_dir: str) -> Any:
    """Purges what this run has written, if it has. A later one, as of an evaluation behind training, purges nothing."""
    callback._SummaryWriter = kind  # noqa: SLF001 - as above
    has_written = any(Path(log_dir).glob(ours))
    return kind(log_dir=log_dir, purge_step=purge_step if has_written else None, filename_suffix=owner)


class Trainer(Recovered, transformers.Trainer):  # type: ignore[misc]  # not installed where types are checked
    """transformers' Trainer, argument for argument."""
