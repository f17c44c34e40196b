"""Counts Lightning's batches as the session's steps, and says when the state may be saved."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Callback
from typing_extensions import override

from recovery.training.session import Session


class Steps(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """One batch is one step. It is saved at the next one's beginning, when validation, callbacks and loggers of this one are done."""

    def __init__(self, session: Session) -> None:
        """Of one entry."""
        super().__init__()
        self._session, self._is_new = session, False

    @override
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.loaded()
        self._session.total_steps = _batches_in_all(trainer)

    @override
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._session.check()
        if self._is_new:
            # What was just loaded is not saved again.
            self._is_new = False
            trainer.save_if_due(self._session)

    @override
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._session.check()
        step = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self._session.applied(step=step, epoch=trainer.current_epoch + 1, step_in_epoch=batch_idx + 1)
        self._is_new = True

    @override
    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._session.check()


def _batches_in_all(trainer: Any) -> int:
    """With how many batches training is over; 0: nobody knows."""
    epochs, batches = trainer.max_epochs or -1, trainer.num_training_batches
    by_epochs = math.inf if epochs < 0 else epochs * batches
    by_steps = math.inf if trainer.max_steps < 0 else trainer.max_steps * trainer.accumulate_grad_batches
    least = min(by_epochs, by_steps)
    return 0 if math.isinf(least) else int(least)
