"""What a script has beside what it gave to Accelerate: it is named before the first step or at the first save, or refused; what was given is not."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate.data_loader")

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, TensorDataset

import recovery.torch
from recovery.accelerate import Accelerator
from recovery.errors import UsageError
from recovery.torch import own_generators
from recovery.training import current
from tests.trainers import shadow
from tests.trainers.alone import Alone

pytestmark = pytest.mark.trainers

Said = Callable[[], list[str]]
Beside = Callable[[Any, nn.Module, torch.optim.Optimizer], Any]
"""What a script makes beside, given the accelerator and what is still to be prepared."""


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    monkeypatch.setattr(own_generators, "_said", set())
    # A folder of one rank that no scheduler has heard of.
    monkeypatch.setattr(recovery.torch, "adopt_folder", lambda *_, **__: None)
    caplog.set_level(logging.INFO, "recovery")
    events = ("event=own_generator", "event=not_a_part")
    yield lambda: [text for text in caplog.messages if text.startswith(events)]
    current.enter(None)


def train(directory: Path, beside: Beside, *, behind: int = 0) -> None:
    """Save behind each of the four steps of two epochs."""
    session: Any = Alone(directory / f"step_{behind}" if behind else None, behind)
    current.enter(session)
    accelerator = Accelerator(cpu=True)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    order = torch.Generator().manual_seed(2)
    rows = TensorDataset(torch.randn(4, 3))
    loader: Any = DataLoader(rows, batch_size=2, shuffle=True, generator=order)
    held = beside(accelerator, net, optimizer)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in accelerator.epochs(2):
        for step, batch in accelerator.steps(loader):
            accelerator.backward(model(batch[0]).square().sum())
            optimizer.step()
            optimizer.zero_grad()
            if isinstance(held, Shadow):
                held.update(net)
            accelerator.save_state(directory / f"step_{step}")


class Noisy:
    """Draws, and has a state if it is asked."""

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.setstate(state["rng"])


class Shadow(shadow.Shadow):
    """One that may be registered."""

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.update(state)


def noisy_module(_: Any, net: nn.Module, __: Any) -> None:
    vars(net)["rng"] = torch.Generator()


NAMED: dict[str, tuple[Beside, str]] = {
    "a module's generator": (
        noisy_module,
        "own_generator model[0] keeps a random generator of its own: .rng (torch._C.Generator)",
    ),
    "the function's generator": (
        lambda *_: random.Random(3),
        "own_generator train() keeps a random generator of its own: held (random.Random)",
    ),
    "a second optimizer": (
        lambda accelerator, net, optimizer: torch.optim.Adagrad(net.parameters()),
        "not_a_part objects=Adagrad they are used beside",
    ),
    "averaged weights": (
        lambda accelerator, net, optimizer: swa_utils.AveragedModel(net),
        "not_a_part objects=AveragedModel they are used beside",
    ),
    "an average by hand": (
        lambda accelerator, net, optimizer: Shadow(net),
        "not_a_part objects=held.weights the steps have changed them",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_was_not_given_is_named(tmp_path: Path, said: Said, name: str) -> None:
    beside, expected = NAMED[name]
    train(tmp_path, beside)
    (line,) = said()
    assert line.startswith(f"event={expected}")
    assert "accelerator.register_for_checkpointing" in line


def test_a_schedule_that_was_not_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"accelerator\.prepare: StepLR sets the learning rate of AdamW"):
        train(tmp_path, lambda accelerator, net, optimizer: lr_scheduler.StepLR(optimizer, 2))
    assert not list(tmp_path.iterdir()), "it is refused before the first step"


def test_behind_a_restore_it_is_refused_at_the_first_save(tmp_path: Path) -> None:
    train(tmp_path, lambda *_: None)
    with pytest.raises(UsageError, match="StepLR sets the learning rate of AdamW"):
        train(tmp_path, lambda accelerator, net, optimizer: lr_scheduler.StepLR(optimizer, 2), behind=2)


def registered(made: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> Beside:
    def beside(accelerator: Any, net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        one = made(net, optimizer)
        accelerator.register_for_checkpointing(one)
        return one

    return beside


def prepared_schedule(accelerator: Any, net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return accelerator.prepare(lr_scheduler.StepLR(optimizer, 2))


def prepared_second(accelerator: Any, net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return accelerator.prepare(torch.optim.Adagrad(net.parameters()))


def generator_of_a_registered_object(accelerator: Any, net: nn.Module, optimizer: Any) -> Any:
    noisy = Noisy()
    accelerator.register_for_checkpointing(noisy)
    return noisy.rng


GIVEN: dict[str, Beside] = {
    "nothing": lambda *_: None,
    "a prepared schedule": prepared_schedule,
    "a registered schedule": registered(lambda net, optimizer: lr_scheduler.StepLR(optimizer, 2)),
    "a prepared second optimizer": prepared_second,
    "registered averages": registered(lambda net, optimizer: swa_utils.AveragedModel(net)),
    "a registered average by hand": registered(lambda net, optimizer: Shadow(net)),
    "the generator of a registered object": generator_of_a_registered_object,
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_was_given_is_not_named(tmp_path: Path, said: Said, name: str) -> None:
    train(tmp_path, GIVEN[name])
    train(tmp_path, GIVEN[name], behind=2)
    assert not said()
