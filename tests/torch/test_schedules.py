"""A schedule that is no part of the state is refused by its class before the first step, or at the first save behind a restore."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import TrainState


class OfAnotherLibrary:
    """As timm's: no class of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


class Holder(OfAnotherLibrary):
    """An object of the user's that saves what is in it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.inside = {"of": [lr_scheduler.ExponentialLR(optimizer, 0.9)]}


def in_a_row(optimizer: torch.optim.Optimizer) -> Any:
    inner = [
        lr_scheduler.ConstantLR(optimizer),
        lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(optimizer)]),
    ]
    return lr_scheduler.SequentialLR(optimizer, inner, [3])


_KINDS: list[Callable[[Any], Any]] = [
    lr_scheduler.ReduceLROnPlateau,
    lambda optimizer: lr_scheduler.StepLR(optimizer, 3),
    lambda optimizer: swa_utils.SWALR(optimizer, 0.1),
    OfAnotherLibrary,
    Holder,
    in_a_row,
]


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.parametrize("made", _KINDS)
def test_a_schedule_that_is_not_named_is_refused(made: Callable[[Any], Any], tmp_path: Path) -> None:
    model, optimizer = trained()
    with (tmp_path / "state").open("wb") as stream:
        TrainState(model=model, optimizer=optimizer).write(stream)
    model, optimizer = trained()
    schedule = made(optimizer)
    with pytest.raises(UsageError, match=r"sets the learning rate of SGD and is not named"):
        TrainState(model=model, optimizer=[optimizer]).begin()
    state = TrainState(model=model, optimizer=optimizer)
    state.read(tmp_path / "state")
    if made is OfAnotherLibrary:
        # As the file of a job that has always had it.
        schedule = made(optimizer)
    with pytest.raises(UsageError, match="is not named"):
        state.snapshot()
    TrainState(model=model, optimizer=optimizer, schedule=[schedule]).begin()


def test_one_that_is_named_does_not_hide_another() -> None:
    model, optimizer = trained()
    named, plateau = lr_scheduler.StepLR(optimizer, 3), lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(UsageError, match="ReduceLROnPlateau"):
        TrainState(model=model, optimizer=optimizer, lr_scheduler=named).begin()
    assert plateau.optimizer is optimizer


def test_what_an_earlier_entry_has_left_is_no_schedule_of_this_one() -> None:
    model, optimizer = trained()
    left: Any = lr_scheduler.StepLR(optimizer, 3)
    left.itself = left
    del left
    gc.disable()
    try:
        schedule = lr_scheduler.StepLR(optimizer, 3)
        TrainState(model=model, optimizer=optimizer, lr_scheduler=schedule).begin()
    finally:
        gc.enable()


class Warmup:
    """A schedule that somebody has written himself, without a base class."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0

    def step(self) -> None:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 * self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Wrapping(torch.optim.Optimizer):
    """As Lookahead's and ZeRO's: the state is that of the one inside."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.defaults, self.state = inner, inner.defaults, inner.state
        self.param_groups = inner.param_groups

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)


_OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "Warmup": lambda model, optimizer: Warmup(optimizer),
    "GradScaler": lambda model, optimizer: torch.amp.GradScaler("cpu"),
    "AveragedModel": lambda model, optimizer: swa_utils.AveragedModel(model),
    "Adagrad": lambda model, optimizer: torch.optim.Adagrad(model.parameters()),
    "Wrapping": lambda model, optimizer: Wrapping(torch.optim.Adagrad(model.parameters())),
}


@pytest.mark.parametrize("name", _OTHERS)
def test_what_goes_with_an_optimizer_and_is_not_named_is_said(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    model, optimizer = trained()
    other = _OTHERS[name](model, optimizer)
    TrainState(model=model, optimizer=optimizer, other=other).begin()
    assert "not_a_part" not in caplog.text
    model, optimizer = trained()
    other = _OTHERS[name](model, optimizer)
    TrainState(model=model, optimizer=optimizer).begin()
    [said] = [record.message for record in caplog.records if "not_a_part" in record.message]
    assert name in said.partition(" they are used beside")[0].partition("objects=")[2].split(",")
    assert other is not None


def test_an_optimizer_without_a_state_is_said_where_something_schedules_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, optimizer = trained()
    schedule = lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 0.2), 3)
    TrainState(model=model, optimizer=optimizer).begin()
    assert "event=not_a_part objects=SGD they are used beside" in caplog.text
    assert schedule.optimizer is not optimizer


def test_what_does_nothing_or_belongs_to_an_earlier_entry_is_not_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, optimizer = trained()
    left: Any = torch.amp.GradScaler("cpu")
    left.itself = left
    del left
    off = torch.amp.GradScaler("cpu", enabled=False)
    plain = torch.optim.SGD(model.parameters(), 0.2)
    TrainState(model=model, optimizer=optimizer).begin()
    assert "not_a_part" not in caplog.text
    assert not off.is_enabled()
    assert not plain.state


def test_of_averaged_weights_inside_a_model_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The model's state has them."""
    gc.collect()
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.add_module("average", swa_utils.AveragedModel(model[0]))
    TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).begin()
    assert "not_a_part" not in caplog.text


def test_a_named_schedule_of_an_optimizer_inside_a_wrapper_is_no_other() -> None:
    model, optimizer = trained()
    schedule = lr_scheduler.StepLR(optimizer, 3)
    TrainState(model=model, optimizer=Wrapping(optimizer), lr_scheduler=schedule).begin()


def test_an_optimizer_that_is_kept_is_looked_at_once() -> None:
    model, optimizer = trained()
    first = lr_scheduler.StepLR(optimizer, 3)
    TrainState(model=model, optimizer=optimizer, lr_scheduler=first).write(io.BytesIO())
    second = lr_scheduler.StepLR(optimizer, 3)
    TrainState(model=model, optimizer=optimizer, lr_scheduler=second).begin()
    assert first.optimizer is optimizer
