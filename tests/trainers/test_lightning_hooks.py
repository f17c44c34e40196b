"""What hooks of an epoch's begin and end set is there again behind a rollback into the epoch, wherever it goes to."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lightning.pytorch")

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import nn

from recovery.errors import UsageError
from tests.trainers.lightning_alone import BATCHES, EPOCHS, SCRIPTS, Net, train

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
"""Lightning has some of its own, of torch's deprecations and of small trainings."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rollback_into_any_epoch_trains_as_if_nothing_had_happened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    lines, weights = train(SCRIPTS[name], tmp_path)
    saved = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert saved[-1] >= EPOCHS * BATCHES - 1
    for behind in (2, 7, 13, saved[-1]):
        again, ends_with = train(SCRIPTS[name], tmp_path, behind=behind)
        assert again == lines[-len(again) :], f"trained otherwise behind step {behind}"
        assert next(line[0] for line in again if line[0] != "mean") == behind + 1
        assert ends_with == weights, f"other weights behind step {behind}"
    for event in ("own_generator", "not_a_part"):
        assert f"event={event}" not in caplog.text, "all of it is kept"


def test_an_end_in_steps_that_is_done_already_is_refused(tmp_path: Path) -> None:
    """Of the optimizer: of 12 batches there are 6."""

    def script() -> tuple[Net, list[Any]]:
        return Net(), [GradientAccumulationScheduler({0: 2})]

    lines, _ = train(script, tmp_path, max_steps=8)
    with pytest.raises(UsageError, match=r"5 is less than what this job has done: it stands at step 6"):
        train(script, tmp_path, behind=12, max_steps=5)
    again, _ = train(script, tmp_path, behind=12, max_steps=8)
    assert again == lines[12:]


class Pacer:
    """Of a user, beside the module."""

    def __init__(self) -> None:
        self.pace = 0


class Unkept(Net):
    def __init__(self) -> None:
        super().__init__()
        self.pacer, self.notes, self.shown = Pacer(), iter(()), SimpleNamespace(epoch=0)

    def on_train_epoch_start(self) -> None:
        self.pacer.pace = self.current_epoch
        self.notes = iter(())
        self.backbone.add_module(f"late_{self.current_epoch}", nn.Identity())


class Keeps(Unkept):
    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """It sees to it itself."""


class Taught(Net):
    """By a copy that it holds in a list, so that no state_dict has it."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [nn.Linear(8, 1)]

    def on_train_batch_end(self, *_: object) -> None:
        with torch.no_grad():
            self.teacher[0].weight.lerp_(self.head.weight, 0.3)


class Warming(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """Counts in an object of its own."""

    def __init__(self) -> None:
        self.pacer = Pacer()

    def on_train_batch_end(self, *_: object) -> None:
        self.pacer.pace += 1


def test_what_steps_change_and_no_checkpoint_has_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="recovery"):
        train(lambda: (Taught(), [Warming()]), tmp_path)
    for named in ("module.teacher (weights of modules that are no submodules)", "Warming_1.pacer.__dict__"):
        assert caplog.text.count(f"event=hook_state_not_kept attribute={named} reason") == 1


@pytest.mark.parametrize("script", [Unkept, Keeps])
def test_what_a_hook_sets_and_no_checkpoint_has_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: type[Net]
) -> None:
    with caplog.at_level(logging.INFO, logger="recovery"):
        train(lambda: (script(), []), tmp_path)
    assert (
        caplog.text.count("event=epoch_hooks_left_out hooks=" + f"{script.__name__}.on_train_epoch_start are")
        == 1
    )
    said = [line.getMessage() for line in caplog.records if "event=hook_state_not_kept" in line.getMessage()]
    named = {line.split("attribute=")[1].split(" reason")[0] for line in said}
    of_module = (
        set() if script is Keeps else {"module.pacer.__dict__", "module.notes", "module.trace.__dict__"}
    )
    structure = "module.backbone.(parameters, buffers, modules or forward hooks)"
    assert named == {structure, *of_module}
    assert len(said) == len(named)
