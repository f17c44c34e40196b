"""Where a data set stands: MindSpore counts its position in steps, over all epochs."""

from __future__ import annotations

from typing import Any

from mindspore import dataset as datasets

from recovery.checkpoint.position import Position


def stand_behind(dataset: Any, step: int, batches_per_epoch: int) -> Position:
    """Put a data set behind a step, before its iterator is made. Behind an epoch's last batch MindSpore stands in the next epoch.

    Args:
        dataset: any of MindSpore's.
        step: of all epochs together; 0: it begins where it stands.
        batches_per_epoch: at least 1.
    """
    if step:
        # With fast recovery off every random augmentation is drawn as an undisturbed run draws it.
        datasets.config.set_fast_recovery(False)
        dataset.set_init_step(step)
    epoch, batch = divmod(step, batches_per_epoch)
    return Position(step=step, epoch=epoch, batch=batch)
