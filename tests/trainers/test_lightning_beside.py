"""What a script has beside a `fit` and no checkpoint has: it is named before the first step or at the first save, or refused; what Lightning keeps is not."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning.pytorch")

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback
from torch.optim import lr_scheduler, swa_utils
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import own_generators
from tests.trainers.lightning_alone import Net, Script, train
from tests.trainers.shadow import Shadow

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
"""As in test_lightning_hooks.py."""

Said = Callable[[], list[str]]
_EVENTS = ("event=own_generator", "event=not_a_part", "event=epoch_hooks_left_out")


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.setattr(own_generators, "_said", set())
    caplog.set_level(logging.INFO, "recovery")
    return lambda: [text for text in caplog.messages if text.startswith(_EVENTS)]


class Drawing(Net):
    """Its steps draw from a generator of its own."""

    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.rng = rng

    @override
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(batch, number)
        drawn = torch.rand((), generator=self.rng) if isinstance(self.rng, torch.Generator) else self.rng()
        return loss * (0.5 + drawn)


class Keeping(Drawing):
    """It sees to it itself."""

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = self.rng.get_state()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.rng.set_state(checkpoint["rng"])


class Noisy(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    def __init__(self) -> None:
        self.rng = random.Random(3)


def drawing_function() -> Any:
    rng = random.Random(3)
    return LambdaCallback(on_train_batch_end=lambda *_: rng.random())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            lambda: (Drawing(torch.Generator()), []),
            "model[0] keeps a random generator of its own: .rng (torch._C.Generator).",
        ),
        (
            lambda: (Drawing(random.Random(3).random), []),
            "model[0] keeps a random generator of its own: .rng (",
        ),
        (lambda: (Net(), [Noisy()]), "Noisy_1 keeps a random generator of its own: .rng (random.Random)."),
        (
            lambda: (Net(), [drawing_function()]),
            "LambdaCallback_1 keeps a random generator of its own: .on_train_batch_end.rng (random.Random).",
        ),
    ],
)
def test_a_generator_of_the_module_or_a_callback_is_named(
    tmp_path: Path, said: Said, script: Script, expected: str
) -> None:
    train(script, tmp_path, max_steps=1)
    (line,) = said()
    assert line.startswith(f"event=own_generator {expected}")
    assert "on_save_checkpoint" in line


def test_a_generator_of_the_function_that_trains_is_named(tmp_path: Path, said: Said) -> None:
    mine = random.Random(3)
    train(lambda: (Net(), []), tmp_path, max_steps=1)
    (line,) = said()
    assert (
        "_function_that_trains_is_named() keeps a random generator of its own: mine (random.Random)." in line
    )
    assert mine.random() > 0


def test_one_that_the_users_hooks_save_is_kept_and_not_named(tmp_path: Path, said: Said) -> None:
    def script() -> tuple[Net, list[Any]]:
        return Keeping(torch.Generator().manual_seed(3)), []

    lines, weights = train(script, tmp_path)
    again, ends_with = train(script, tmp_path, behind=13)
    assert again == lines[-len(again) :]
    assert ends_with == weights
    assert not said()


class Scheduled(Net):
    """By a schedule that Lightning is not given."""

    @override
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.03)
        self.schedule = lr_scheduler.StepLR(optimizer, 2, 0.3)
        return optimizer

    def on_train_epoch_end(self) -> None:
        self.schedule.step()


class KeepingSchedule(Scheduled):
    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["schedule"] = self.schedule.state_dict()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.loaded = checkpoint["schedule"]

    def on_train_start(self) -> None:
        if hasattr(self, "loaded"):
            self.schedule.load_state_dict(self.loaded)


def test_a_schedule_that_lightning_is_not_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"configure_optimizers: StepLR sets the learning rate of AdamW"):
        train(lambda: (Scheduled(), []), tmp_path)
    assert not (tmp_path / "1").exists(), "it is refused before the first step"


def test_behind_a_restore_it_is_refused_at_the_first_save(tmp_path: Path) -> None:
    train(lambda: (Net(scheduled=False), []), tmp_path, max_steps=6)
    with pytest.raises(UsageError, match="StepLR sets the learning rate of AdamW"):
        train(lambda: (Scheduled(), []), tmp_path, behind=5)


def test_one_that_the_users_hooks_save_is_kept(tmp_path: Path, said: Said) -> None:
    def script() -> tuple[Net, list[Any]]:
        return KeepingSchedule(), []

    lines, weights = train(script, tmp_path)
    again, ends_with = train(script, tmp_path, behind=13)
    assert again == lines[-len(again) :]
    assert ends_with == weights
    assert not said()


class Averaged(Net):
    """Lightning keeps the average with the module."""

    def __init__(self) -> None:
        super().__init__()
        self.average = swa_utils.AveragedModel(self.head)


class Listed(Net):
    """A list hides it."""

    def __init__(self) -> None:
        super().__init__()
        self.averages = [swa_utils.AveragedModel(self.head)]


class Two(Net):
    """One optimizer steps by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.second = torch.optim.Adagrad(self.head.parameters())


@pytest.mark.parametrize(("made", "name"), [(Listed, "AveragedModel"), (Two, "Adagrad")])
def test_what_else_counts_is_named(tmp_path: Path, said: Said, made: type[Net], name: str) -> None:
    train(lambda: (made(), []), tmp_path, max_steps=2)
    (line,) = said()
    assert line.startswith(f"event=not_a_part objects={name} they are used beside the optimizers")
    assert "configure_optimizers" in line


class Shadowed(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """The same as attributes of a callback: these are kept."""

    def __init__(self, shadow: Shadow | None = None) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.update = shadow.update if shadow is not None else lambda net: None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: object) -> None:
        self.update(pl_module)
        self.weights = {name: one.detach() * 0.5 for name, one in pl_module.named_parameters()}


def test_a_copy_of_the_weights_that_the_function_holds_is_named(tmp_path: Path, said: Said) -> None:
    net = Net()
    shadow = Shadow(net)
    train(lambda: (net, [Shadowed(shadow)]), tmp_path, max_steps=3)
    (line,) = said()
    assert line.startswith("event=not_a_part objects=shadow.weights the steps have changed them")


def test_one_that_a_callback_holds_is_kept_and_not_named(tmp_path: Path, said: Said) -> None:
    callback = Shadowed()
    train(lambda: (Averaged(), [callback]), tmp_path, max_steps=3)
    assert not said()


def test_the_hook_of_a_lambda_callback_is_named(tmp_path: Path, said: Said) -> None:
    by_name = {"on_train_epoch_start": lambda *_: None, "on_train_batch_start": lambda *_: None}
    train(lambda: (Net(), [LambdaCallback(**by_name), LambdaCallback()]), tmp_path, max_steps=1)
    (line,) = said()
    assert line.startswith("event=epoch_hooks_left_out hooks=LambdaCallback_1.on_train_epoch_start are not")
