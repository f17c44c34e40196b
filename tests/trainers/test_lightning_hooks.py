"""What hooks of an epoch's begin and end set is there again behind a rollback into the epoch, wherever it goes to."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("lightning.pytorch")

from torch import nn

from tests.trainers.lightning_alone import BATCHES, EPOCHS, SCRIPTS, Net, train

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
"""Lightning has some of its own, of torch's deprecations and of small trainings."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rollback_into_any_epoch_trains_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    lines, weights = train(SCRIPTS[name], tmp_path)
    saved = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert saved[-1] >= EPOCHS * BATCHES - 1
    for behind in (2, 7, 13, saved[-1]):
        again, ends_with = train(SCRIPTS[name], tmp_path, behind=behind)
        assert again == lines[-len(again) :], f"trained otherwise behind step {behind}"
        assert next(line[0] for line in again if line[0] != "mean") == behind + 1
        assert ends_with == weights, f"other weights behind step {behind}"


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
    of_module = set() if script is Keeps else {"module.pacer.__dict__", "module.notes"}
    structure = "module.backbone.(parameters, buffers, modules or forward hooks)"
    assert named == {structure, *of_module}
    assert len(said) == len(named)
