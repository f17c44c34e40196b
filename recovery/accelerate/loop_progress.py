"""Where the loop of Accelerate stands, and how an epoch is gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recovery.accelerate import random_position
from recovery.accelerate.random_position import DrawWatch, Generators, Saved
from recovery.checkpoint.position import Position
from recovery.errors import UsageError
from recovery.torch import restored
from recovery.torch.outside_folders import OutsideFolders
from recovery.torch.random_state import restore_random_state
from recovery.torch.trainer_options import TrainerOptions
from recovery.training.outlook import steps_of_epoch
from recovery.training.session import Session


class LoopProgress:
    """Where the loop of one entry stands: its epoch and step, and the random generators that a resumed epoch begins with.

    Attributes:
        session: of this entry.
        epoch: that trains, 0-based.
        step: applied, over all epochs.
        epochs: of the whole training.
    """

    def __init__(self, session: Session) -> None:
        """Stand before the first step."""
        self.session, self.epoch, self.epochs = session, 0, 0
        self._batches, self.step = 0, 0
        """Of this epoch, of all."""
        self._generators = Generators(None)
        self._begun: Saved = {}
        self._in_steps = self._is_first = self._is_counted = False
        self._may_begin = False
        self._division: Saved = {}
        """What the place in an epoch is counted by."""
        self._resumed: Saved | None = None
        self._draws = DrawWatch()
        self.outside = OutsideFolders(dict)
        """What of the prepared objects no folder has."""
        self.options: TrainerOptions | None = None

    def stand(self, saved: Saved | None) -> None:
        """Go on where a folder was saved."""
        self.step = self.session.step
        if saved is None:
            self.epoch, self._batches = max(0, self.session.epoch - 1), self.session.step_in_epoch
            return
        self.epoch, self._batches = saved["epoch"], saved["batches"]
        self._resumed, self._division = saved, saved.get("division", {})
        restore_random_state(saved["now"]["process"])

    @property
    def position(self) -> Position:
        """The same, before the loop has begun."""
        return Position(step=self.step, epoch=self.epoch, batch=self._batches)

    def begin_epoch(self, epoch: int) -> None:
        """The loop over the epochs comes to this one."""
        if epoch != self.epoch:
            self.epoch, self._batches = epoch, 0
        self._may_begin = True

    def begin_steps(self, loader: Any) -> int:
        """Begin or go on with an epoch's loop; gives how many batches of it are behind training already.

        Raises:
            UsageError: there is no such loop to begin.
            CheckpointStateError: an epoch goes on, and its batches are of another size.
        """
        if not self._may_begin:
            raise UsageError(
                field="accelerator.steps",
                reason="is called outside the loop over accelerator.epochs, or a second time in one epoch",
                next_step="Call it once in each epoch, for the loader that training counts its steps by.",
            )
        self._may_begin = False
        self._tell_end(loader)
        before = self._division
        self._division = {
            "batch_size": getattr(loader, "total_batch_size", None),
            "batches": steps_of_epoch(loader),
        }
        for name in before.keys() & self._division.keys() if self._batches else ():
            if before[name] != self._division[name]:
                changed = f"was {before[name]} and is {self._division[name]}, and training goes on in the middle of an epoch"
                raise restored.unfit(name, changed)
        if self._generators.loader is not loader:
            self._generators = Generators(loader, field="accelerator.steps")
        generators = self._generators
        if self._resumed is not None:
            generators.keep_workers()
        if self._resumed is not None and self._batches:
            generators.restore(self._resumed["begun"])
        elif self._resumed is not None:
            generators.restore(self._resumed["now"], with_process=False)
            self._resumed = None
        self._begun = generators.state()
        self._in_steps, self._is_first, self._is_counted = True, True, True
        return self._batches

    def drawn_again(self, skipped: int) -> Iterator[Any] | None:
        """What follows so many batches of the loader; None: they can be left out."""
        return self._generators.drawn_again((self._resumed or {}).get("now", {}), skipped)

    def _tell_end(self, loader: Any) -> None:
        """With which step training ends, for people, where the epochs that are left are as long as this one."""
        length = steps_of_epoch(loader)
        if length:
            self.session.total_steps = self.step - self._batches + (self.epochs - self.epoch) * length

    def before_fetch(self) -> None:
        """A batch is about to be fetched."""
        self._draws.before_fetch(is_first=self._is_first)

    def after_fetch(self) -> None:
        """It was, or there are no more."""
        self._draws.after_fetch()
        if self._resumed is not None:
            restore_random_state(self._resumed["now"]["process"])
            self._resumed = None
        self._is_first, self._is_counted = False, False

    def applied(self) -> None:
        """The step of the batch that was yielded last is applied. It is counted once."""
        if self._is_counted:
            return
        self._is_counted = True
        self.step, self._batches = self.step + 1, self._batches + 1
        self.session.applied(step=self.step, epoch=self.epoch + 1, step_in_epoch=self._batches)
        self.session.check()

    def end_steps(self) -> None:
        """The epoch's last batch is used: what is saved from here on is gone on from in the next epoch."""
        self._in_steps, self._is_counted = False, True

    def write(self, folder: Path) -> None:
        """Write where this rank stands into a folder that is being saved."""
        within = self._in_steps
        random_position.write(
            folder,
            rank=self.session.rank,
            epoch=self.epoch if within else self.epoch + 1,
            batches=self._batches if within else 0,
            begun=self._begun,
            division=self._division,
            options={} if self.options is None else self.options.take(),
            now=self._generators.state(),
            outside=self.outside.take(),
        )
