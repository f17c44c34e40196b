"""The callback of a recovered Trainer: it counts steps and makes checkpoints of the folders. It is the last of the callbacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import distributed
from transformers import TrainerCallback
from typing_extensions import override

import recovery.torch as rt
from recovery.accelerate import random_position
from recovery.accelerate.random_position import DrawWatch, Generators, Saved
from recovery.errors import UsageError
from recovery.torch import outside_state_dict, own_generators, same_passes
from recovery.torch.outside_folders import OutsideFolders
from recovery.torch.trainer_options import TrainerOptions
from recovery.training.session import Session
from recovery.transformers import beside_training, training_arguments
from recovery.transformers.own_attributes import OwnAttributes


class Steps(TrainerCallback):  # type: ignore[misc]  # not installed where types are checked
    """Of one Trainer, in one entry.

    Attributes:
        num_epochs: of the training.
        updates_per_epoch: steps of an epoch.
        draws: looks at what fetching draws.
        is_first_fetch: nothing of this epoch was fetched yet.
        drawn_again: the rest of an epoch of a stream that goes on, which the Trainer would not compare; None: it fetches by itself.
    """

    def __init__(self, trainer: Any, session: Session, *, keep: int | None) -> None:
        """Nothing is counted before `stand`. So many folders are to `keep`; None: all."""
        self._trainer, self._session, self._keep = trainer, session, keep
        self.num_epochs = self.updates_per_epoch = 0
        self.draws, self.is_first_fetch = DrawWatch(), True
        self.drawn_again: Iterator[Any] | None = None
        self._epoch = self._updates = 0
        """The epoch that trains, 0-based, and steps of it."""
        self.outside = OutsideFolders(dict)
        """What no folder has of what was prepared."""
        self.own = OwnAttributes(trainer)
        """What no folder has of what callbacks and the Trainer itself count."""
        self.options: TrainerOptions | None = None
        """Noted where the schedule was made."""
        self._resumed: Saved | None = None
        self._generators = Generators(None)
        self._begun: Saved = {}
        self._goes_on = False
        """The epoch that begins was begun before."""
        self._stops = False
        """No step of the epoch that goes on is left, and none is to follow."""
        self._has_trained = self._saves_behind_epoch = self._steps_are_over = self._epoch_is_over = False

    def begin(self) -> None:
        """See that this is the only training of the entry.

        Raises:
            UsageError: it is not.
        """
        if self._has_trained:
            raise UsageError(
                field="Trainer.train",
                reason="was called a second time in one training function",
                next_step="Train all epochs in one call.",
            )
        self._has_trained = True

    def stand(self, epoch: int, updates: int, resumed: Saved | None, *, stops: bool) -> None:
        """Count from here: `updates` steps of an epoch (0-based), which begins or goes on.

        `resumed` is what this rank has saved there; None: nothing. `stops`: training ends with this epoch's end, and no step is left.
        """
        # An epoch counts when it begins.
        self._epoch, self._updates, self._resumed = epoch - 1, updates, resumed
        self._goes_on, self._stops = True, stops
        self.own.prepare()

    @property
    def optimizer(self) -> Any:
        """The script's or the Trainer's, out of Accelerate's hands."""
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)

    def put_options(self, resumed: Saved) -> None:
        """The Trainer has loaded: say what has changed since the save.

        Raises:
            CheckpointStateError: the place in the epoch is counted by it.
        """
        is_within = resumed["batches"] and not resumed.get("is_closing")
        assert self.options is not None, "schedules were made"
        self.options.put(resumed.get("options", {}), fixed=training_arguments.DIVISION if is_within else ())

    def note_prepared(self) -> None:
        """Model and optimizer are as training will have them."""
        trainer = self._trainer

        def parts() -> dict[str, list[Any]]:
            return {"model": [trainer.model_wrapped], "optimizer": [self.optimizer]}

        frozen = [outside_state_dict.frozen(trainer.model)]
        self.outside = OutsideFolders(parts, frozen=frozen, beside=beside_training.of(trainer, self.own))

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Have the next line of the loss be the mean of as many steps as in a training that nothing happened to."""
        self._session.total_steps = max(0, state.max_steps)
        self.outside.begin()
        # Earlier releases have saved none.
        self.own.begin(None if self._resumed is None else self._resumed.get("own"))
        if self._resumed is not None:
            if self._epoch + 1 >= self.num_epochs:
                # No epoch begins any more.
                self.outside.put(self._resumed.get("outside", {}))
            trainer = self._trainer
            trainer._tr_loss = self._resumed["loss"].to(args.device)  # noqa: SLF001 - its folders do not hold them
            trainer._globalstep_last_logged = self._resumed["logged"]  # noqa: SLF001 - as above

    @override
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._epoch += 1
        self._epoch_is_over, self._steps_are_over, self.is_first_fetch = False, False, True
        self.drawn_again = None
        resumed, self._resumed = self._resumed, None
        if not self._goes_on:
            self._updates = 0
        self._goes_on = False
        loader = others["train_dataloader"]
        if self._generators.loader is not loader:
            self._generators = Generators(loader, field="train_dataset")
        if resumed is not None:
            self._go_on(resumed, loader, control)
        self._begun = self._generators.state()
        own_generators.note_of(loader)
        if not self._updates:
            same_passes.check(same_passes.length_of(loader), epoch=self._epoch)

    def _go_on(self, resumed: Saved, loader: Any, control: Any) -> None:
        self.outside.put(resumed.get("outside", {}))
        if self._updates:
            # The hooks of this epoch's beginning have run twice.
            self.own.put(resumed.get("own", {}))
        fetches = self._updates and not resumed.get("is_closing")
        # The Trainer puts back those of the save itself behind the first fetch of an epoch that goes on.
        self._generators.restore(resumed["begun" if fetches else "now"])
        if fetches:
            tell_epoch(loader, self._epoch)
            self.drawn_again = self._generators.drawn_again(resumed["now"], resumed["batches"])
        else:
            # They were loaded as they were in the save, and no step is to follow that would clear them.
            control.should_save = control.should_log = control.should_evaluate = False
            control.should_training_stop = self._stops

    @override
    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._session.check()

    @override
    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._session.check()

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._updates += 1
        self._session.applied(step=state.global_step, epoch=self._epoch + 1, step_in_epoch=self._updates)
        self._session.check()
        # What an epoch ends with comes behind this step, and belongs into its folder.
        self._steps_are_over = control.should_training_stop or self._updates == self.updates_per_epoch
        self._saves_behind_epoch = self._steps_are_over and control.should_save
        control.should_save = control.should_save and not self._steps_are_over
        if control.should_training_stop or state.global_step >= state.max_steps:
            self._session.phases.end()

    @override
    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        loss = others.get("logs", {}).get("loss")
        if loss is not None:
            self._session.report(loss=loss)

    @override
    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._epoch_is_over, self._steps_are_over = self._updates == self.updates_per_epoch, False
        control.should_save = control.should_save or self._saves_behind_epoch
        self._saves_behind_epoch = False

    @override
    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        trainer = self._trainer
        # The evaluation behind an epoch's last step may ask for a save, which then is the one that was due there.
        self._saves_behind_epoch = False
        random_position.write(
            folder,
            rank=self._session.rank,
            epoch=self._epoch + 1 if self._epoch_is_over else self._epoch,
            batches=0 if self._epoch_is_over else self._updates * args.gradient_accumulation_steps,
            begun=self._begun,
            now=self._generators.state(),
            is_closing=self._steps_are_over,
            outside=self.outside.take(),
            own=self.own.take(),
            options=self.options.take() if self.options is not None else {},
            # At its last step every training stops; more may be asked for at the next start.
            is_over=bool(control.should_training_stop and state.global_step < state.max_steps),
            loss=trainer._tr_loss.detach().cpu(),  # noqa: SLF001 - as above
            logged=trainer._globalstep_last_logged,  # noqa: SLF001 - as above
        )
        # Rank 0 writes files that carry no rank: all are there when all have met.
        distributed.barrier()
        rt.adopt_folder(self._session, folder, keep=self._keep, is_pinned=is_best)


def tell_epoch(loader: Any, epoch: int) -> None:
    """As the Trainer tells what an epoch is taken from; where some of it is left out, it tells the loader of the rest, and so not every sampler."""
    inner: Any = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    for part in (loader, inner):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def is_best(folder: Path) -> bool:
    """Does a newer step's folder beside it name it as its best model? Then it stays: whoever goes back there needs it in the end."""
    step = _step_of(folder)
    return any(
        _step_of(other) > step and _best_of(other) == folder.name
        for other in folder.parent.glob("checkpoint-*")
    )


def _step_of(folder: Path) -> int:
    """-1: its name has none."""
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _best_of(folder: Path) -> str:
    """Empty: it names none, or is being removed or written."""
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return ""
    best = state.get("best_model_checkpoint") if isinstance(state, dict) else None
    return Path(best).name if isinstance(best, str) else ""
