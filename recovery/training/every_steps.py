"""A function of the script that runs on all ranks at given steps: an evaluation, a best checkpoint, a look at whether to stop."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from recovery.errors import SettingError
from recovery.training.session import Callback, Session


def whole_steps(steps: object, field: str, next_step: str) -> int:
    """Take a number of steps between two calls as it is given.

    Raises:
        SettingError: it is no whole number from 1 on.
    """
    if isinstance(steps, (int, float)) and steps >= 1 and steps % 1 == 0:
        return int(steps)
    rule = "must be a whole number, at least 1"
    raise SettingError("SETTING_RANGE", field=field, value=str(steps), rule=rule, next_step=next_step)


class EverySteps(Callback):
    """Calls a function at each multiple of so many steps, on every rank, before that step is saved.

    So a rollback runs it again at the steps that it goes back before, and at no other: a checkpoint of a step is there only once the
    function has returned at that step on every rank.
    """

    def __init__(
        self, steps: int, function: Callable[[Session], object], *, changes_state: bool = True
    ) -> None:
        """Choose when.

        Args:
            steps: between two calls, counted over all epochs, at least 1.
            function: takes the session. It may use collectives, since all ranks are in it, and may call `session.stop()`.
            changes_state: False: it leaves the training state as it is, its random generators too, so that live rollback is spared a
                look at it.

        Raises:
            SettingError: `steps` is no whole number from 1 on.
        """
        self._steps = whole_steps(steps, "steps", "Say at each how many steps the function is to be called.")
        self._function = function
        self.changes_state = changes_state

    @override
    def on_step_end(self, session: Session) -> None:
        """Call it when it is time."""
        if session.step % self._steps == 0:
            self._function(session)
