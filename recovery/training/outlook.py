"""With how many steps a training is over, and that this lies behind what is done; and what people are told of it beside its step: the loss."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from recovery.checkpoint.position import Position
from recovery.errors import UsageError
from recovery.training.state import Loss

_logger = logging.getLogger("recovery.training")


class End:
    """With what training is over: passes, steps, or whichever comes first."""

    def __init__(self, epochs: int | None, max_steps: int | None) -> None:
        """Of a call of `Session.steps`.

        Raises:
            UsageError: neither is given.
        """
        if max_steps is None and epochs is None:
            raise UsageError(
                field="steps",
                reason="was given neither epochs nor max_steps, so training would have no end",
                next_step="Give epochs, the passes over the data in all, or max_steps, the steps in all.",
            )
        self._epochs, self._max_steps = epochs, max_steps

    def check(self, at: Position) -> None:
        """See that it does not lie behind where training stands, as `check_end`."""
        if self._max_steps is not None:
            check_steps(at.step, self._max_steps, field="max_steps")
        if self._epochs is not None:
            check_end(at, self._epochs, field="epochs")

    def steps(self, in_a_pass: int) -> int:
        """How many they are, for people; 0: not known."""
        of_passes = (self._epochs or 0) * in_a_pass
        if self._max_steps is None:
            return of_passes
        return min(self._max_steps, of_passes or self._max_steps)

    def is_last(self, step: int) -> bool:
        """Does no further step follow, whatever is left of the pass?"""
        return self._max_steps is not None and step >= self._max_steps

    def is_reached(self, position: Position) -> bool:
        """Is nothing left where training stands?"""
        return self.is_last(position.step) or (self._epochs is not None and position.is_over(self._epochs))


class LossTold:
    """The newest loss that is a number on the host. One that is on a device is told only when somebody has read it anyway.

    The thread that speaks with the scheduler gets a number and touches no tensor: it would be in C++ without the GIL, and where the interpreter ends
    meanwhile Python before 3.14 ends the thread there, and C++ the process (torch/ended_groups.py, fact 3).
    """

    def __init__(self) -> None:
        """None yet."""
        self.value: float | None = None
        """What may be told, by any thread."""

    def read(self, loss: Loss) -> float:
        """Read it, whatever it waits for."""
        self.value = float(loss)
        return self.value

    def note(self, loss: Loss) -> Loss:
        """Read it in the thread that trains, if nothing is waited for (3.5 us of a torch tensor). Gives it back."""
        if _is_here(loss):
            # Whatever was reported, it costs nobody a step.
            with contextlib.suppress(Exception):
                self.value = float(loss)
        return loss


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
        raise _ended_before(field, epochs, f"step {at.step}, behind {at.epoch} epochs{begun}")
    if (at.epoch, at.batch) == (epochs, 0) and at.step:
        _logger.info("event=nothing_left the end of training is where it goes on, at step %d", at.step)


def check_steps(step: int, max_steps: int, *, field: str) -> None:
    """As `check_end`, of steps in all."""
    if step > max_steps:
        raise _ended_before(field, max_steps, f"step {step}")


def _ended_before(field: str, end: int, done: str) -> UsageError:
    return UsageError(
        field=field,
        reason=f"{end} is less than what this job has done: it stands at {done}",
        next_step="Give a later end, or begin a new job: `recovery reset PATH`, or another MS_RECOVERY_PATH.",
    )


def _is_here(loss: Loss) -> bool:
    """Is it a number, or an array in the host's memory, as the array API standard has it? Of one that is spread over ranks all of them would be asked."""
    if isinstance(loss, (int, float)):
        return True
    return str(getattr(loss, "device", "")) == "cpu" and not hasattr(loss, "full_tensor")
