"""The line that LossMonitor prints: MindSpore's own, with five digits and the step of the whole training."""

from __future__ import annotations

from typing import Any

import pytest

import recovery
from tests.training.test_save_out_of_turn import OneRank


def test_a_line_names_the_step_of_the_epoch_and_of_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = OneRank()
    session.loss = 1.23456789
    monitor = recovery.LossMonitor(20)
    for session.step in range(1, 41):
        session.epoch, session.step_in_epoch = divmod(session.step - 1, 25)
        session.epoch, session.step_in_epoch = session.epoch + 1, session.step_in_epoch + 1
        monitor.on_step_end(session)
    assert capsys.readouterr().out.splitlines() == [
        "epoch: 1 step: 20, loss is 1.2346 (global step 20)",
        "epoch: 2 step: 15, loss is 1.2346 (global step 40)",
    ]
