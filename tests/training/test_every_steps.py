"""A function of the script at every so many steps: when it is called, and what it may not be given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from recovery.errors import SettingError
from recovery.training.every_steps import EverySteps
from recovery.training.tracker import Tracker


def test_it_is_called_at_each_multiple_with_the_session() -> None:
    called: list[int] = []
    callback = EverySteps(3, lambda session: called.append(session.step))
    for step in range(1, 11):
        session: Any = SimpleNamespace(step=step)
        callback.on_step_end(session)
    assert called == [3, 6, 9]


def test_live_rollback_looks_at_the_state_behind_it_unless_it_is_said_to_leave_that_alone() -> None:
    assert EverySteps(1, print).changes_state
    assert not EverySteps(1, print, changes_state=False).changes_state


@pytest.mark.parametrize("steps", [0, -1, 1.5, float("nan"), float("inf"), "3", None])
def test_a_number_of_steps_that_never_comes_is_refused(steps: Any) -> None:
    with pytest.raises(SettingError, match="whole number, at least 1"):
        EverySteps(steps, print)
    with pytest.raises(SettingError, match=r"every_steps=\.\.\..*whole number, at least 1"):
        Tracker("tensorboard", every_steps=steps)
