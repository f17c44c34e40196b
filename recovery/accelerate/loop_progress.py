"""Where a loop of Accelerate stands: its epoch and step, and the random generators that a resumed epoch begins with."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from recovery.accelerate import random_position
from recovery.accelerate.random_position import DrawWatch, Generators, Saved
from recovery.errors import UsageError
from recovery.torch.random_state import restore_random_state
from recovery.training.session import Session


class LoopProgress:
    """Of one entry.

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
        self._resumed: Saved | None = None
        self._draws = DrawWatch()

    def stand(self, saved: Saved | None) -> None:
        """Go on where a folder was saved."""
        self.step = self.session.step
        if saved is None:
            self.epoch, self._batches = max(0, self.session.epoch - 1), self.session.step_in_epoch
            return
        self.epoch, self._batches = saved["epoch"], saved["batches"]
        self._resumed = saved
        restore_random_state(saved["now"]["process"])

    def begin_epoch(self, epoch: int) -> None:
        """The loop over the epochs comes to this one."""
        if epoch != self.epoch:
            self.epoch, self._batches = epoch, 0
        self._may_begin = True

    def begin_steps(self, loader: Any) -> int:
        """Begin or go on with an epoch's loop; gives how many batches of it are behind training already.

        Raises:
            UsageError: there is no such loop to begin.
        """
        if not self._may_begin:
            raise UsageError(
                field="accelerator.steps",
                reason="is called outside the loop over accelerator.epochs, or a second time in one epoch",
                next_step="Call it once in each epoch, for the loader that training counts its steps by.",
            )
        self._may_begin = False
        self._tell_end(loader)
        self._generators = generators = Generators(loader)
        if self._resumed is not None and self._batches:
            generators.restore(self._resumed["begun"])
        elif self._resumed is not None:
            generators.restore(self._resumed["now"], with_process=False)
            self._resumed = None
        self._begun = generators.state()
        self._in_steps, self._is_first, self._is_counted = True, True, True
        return self._batches

    def _tell_end(self, loader: Any) -> None:
        """With which step training ends, for people, where the epochs that are left are as long as this one."""
        # A stream has no length.
        with contextlib.suppress(TypeError):
            left = (self.epochs - self.epoch) * len(loader)
            self.session.total_steps = self.step - self._batches + left

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
            now=self._generators.state(),
        )
