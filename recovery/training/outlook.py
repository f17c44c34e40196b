"""What people are told of a training beside its step: the loss, and with how many steps it is over. Nothing waits for it, and nothing depends on it."""

from __future__ import annotations

from typing import Any

from recovery.training.state import Loss


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


def _is_here(loss: Loss) -> bool:
    """Is it a number, or an array in the host's memory, as the array API standard has it?"""
    return isinstance(loss, (int, float)) or str(getattr(loss, "device", "")) == "cpu"
