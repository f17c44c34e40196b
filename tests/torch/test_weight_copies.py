"""What the steps change beside the state is named at the first save: it would begin again behind a failure."""

from __future__ import annotations

import copy
import io
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recovery.torch import TrainState

Step = Callable[[], None]


class Average:
    """As many write it themselves."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update(self, model: torch.nn.Module) -> None:
        for name, one in model.named_parameters():
            self.shadow[name].mul_(0.9).add_(one.detach(), alpha=0.1)


class Kept(Average):
    """One that a checkpoint has."""

    def state_dict(self) -> dict[str, Any]:
        return self.shadow

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow.update(state)


def change(module: torch.nn.Module) -> None:
    for one in module.parameters():
        one.data.mul_(0.5)


def hold_average(model: torch.nn.Module) -> tuple[Any, Step]:
    average = Average(model)

    def step() -> None:
        change(model)
        average.update(model)

    return average, step


def hold_target(model: torch.nn.Module) -> tuple[Any, Step]:
    target = copy.deepcopy(model).requires_grad_(requires_grad=False)
    return target, lambda: change(target)


def hold_targets(model: torch.nn.Module) -> tuple[Any, Step]:
    targets = [copy.deepcopy(model), copy.deepcopy(model)]
    return targets, lambda: change(targets[1])


def hold_tensors(model: torch.nn.Module) -> tuple[Any, Step]:
    tensors = {name: one.detach().clone() for name, one in model.named_parameters()}
    return tensors, lambda: tensors.update(weight=torch.zeros_like(tensors["weight"]))


def hold_queue(model: torch.nn.Module) -> tuple[Any, Step]:
    queue: deque[Any] = deque(maxlen=4)
    return queue, lambda: queue.append((torch.ones(3), 1))


_PLACES = {
    hold_average: "beside.shadow",
    hold_target: "beside",
    hold_targets: "beside[1]",
    hold_tensors: "beside",
    hold_queue: "beside",
}


@pytest.mark.parametrize("held", _PLACES)
def test_what_the_steps_change_is_named_once(held: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(3, 2)
    beside, step = held(model)
    assert beside is not None
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    state.begin()
    step()
    state.write(io.BytesIO())
    state.write(io.BytesIO())
    assert caplog.text.count(f"event=not_a_part objects={_PLACES[held]} the steps have changed them") == 1


def test_what_stays_as_it_is_and_what_is_a_part_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(3, 2)
    teacher, counts, losses = copy.deepcopy(model), [0], deque([torch.tensor(0.0)])
    average, target = Kept(model), copy.deepcopy(model)
    values = {"mean": torch.ones(2, 3), "of": torch.ones(2)}
    state = TrainState(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        average=average,
        target=target,
    )
    state.begin()
    counts[0] += 1
    losses.append(torch.tensor(1.0))
    average.update(model)
    change(target)
    change(model)
    state.write(io.BytesIO())
    assert "not_a_part" not in caplog.text
    assert teacher is not model
    assert values["mean"].sum() == 6
