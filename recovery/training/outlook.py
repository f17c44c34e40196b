"""What people are told of a training beside its step: the loss, with how many steps it is over, and that this lies behind what is done."""

from __future__ import annotations

import logging
from typing import Any

from recovery.checkpoint.position import Position
from recovery.errors import UsageError
from recovery.training.state import Loss

_logger = logging.getLogger("recovery.training")


class LossTold:
    """The newest loss that is a number on the host. One that is on a device is told only when somebody has read it anyway."""

    def __init__(self) -> None:
        """None yet."""
        self._read: float | None = None

    def read(self, loss: Loss) -> float:
        """Read it, whatever it waits for."""
        self._read = float(loss)
        return self._read

    def value_of(self, loss: Loss | None) -> float | None:
        """What may be told of a loss; asked by the thread that speaks with the scheduler, which may not wait for a device."""
        if loss is None or not _is_here(loss):
            return self._read
        try:
            return float(loss)
        except Exception:  # noqa: BLE001 - whatever was reported, it costs nobody the heartbeat
            return self._read


def steps_of_epoch(batches: Any) -> int:
    """How many batches a pass has; 0: the loader does not say."""
    try:
        return max(0, len(batches))
    except Exception:  # noqa: BLE001 - a loader of the user's, which is asked for people's sake alone
        return 0


def check_end(at: Position, epochs: int, *, field: str) -> None:
    """See that training does not end before where it stands: nothing would be trained, and the job would be over as if all were done.

    Args:
        at: where training goes on.
        epochs: passes in all, as the script says now.
        field: what it says so by.

    Raises:
        UsageError: it does.
    """
    if (at.epoch, at.batch) > (epochs, 0):
        begun = f" and {at.batch} batches" if at.batch else ""
        raise UsageError(
            field=field,
            reason=f"{epochs} is less than what this job has done: it stands at step {at.step}, behind {at.epoch} epochs{begun}",
            next_step="Give a later end, or begin a new job: `recovery reset PATH`, or another MS_RECOVERY_PATH.",
        )
    if (at.epoch, at.batch) == (epochs, 0) and at.step:
        _logger.info("event=nothing_left the end of training is where it goes on, at step %d", at.step)


def _is_here(loss: Loss) -> bool:
    """Is it a number, or an array in the host's memory, as the array API standard has it?"""
    return isinstance(loss, (int, float)) or str(getattr(loss, "device", "")) == "cpu"
