"""Modes, numbers and tensors of modules that training changes come back with a checkpoint; what does not is named."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from recovery.torch import TrainState
from recovery.torch.live_parts import LiveParts


class Centred(nn.Module):
    """An average that is no buffer, and a step's result."""

    def __init__(self) -> None:
        super().__init__()
        self.centre, self.history = torch.zeros(3), [0.0]

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.centre = 0.5 * self.centre + 0.5 * rows.detach().mean(0)
        self.history.append(1.5)
        self.last = rows - self.centre
        return self.last


class Pace:
    def __init__(self) -> None:
        self.count = 0


class Net(nn.Module):
    """Of all that can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.centred = nn.BatchNorm1d(3), nn.Dropout(0.1), Centred()
        self.lstm, self.out, self.temperature = nn.LSTM(3, 3), nn.Linear(3, 1), 1.0
        self.also = [self.out]

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.lstm(self.centred(self.drop(self.norm(rows))))[0])
        return found / self.temperature


class Training:
    """A state from where training begins, as a process builds it."""

    def __init__(self, net: Callable[[], nn.Module] = Net) -> None:
        torch.manual_seed(3)
        self.net: Any = net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.state = TrainState(model=self.net, optimizer=self.optimizer)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.net(torch.randn(4, 3)).square().mean().backward()
        self.optimizer.step()

    def save(self, path: Path) -> Path:
        with path.open("wb") as stream:
            self.state.write(stream)
        return path


def _change(net: Any) -> None:
    net.norm.eval()
    net.drop.p, net.norm.momentum, net.temperature = 0.4, 0.9, 0.5


def _weights(net: Any) -> list[Any]:
    return [(name, tensor.tolist()) for name, tensor in net.state_dict().items()]


def test_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    plain, again = Training(), Training()
    plain.state.begin()
    plain.step()
    _change(plain.net)
    plain.step()
    path = plain.save(tmp_path / "state")
    plain.step()

    again.state.read(path)
    assert (again.net.training, again.net.norm.training) == (True, False)
    again.step()

    assert _weights(again.net) == _weights(plain.net)
    assert again.net.centred.history == [0.0, 1.5, 1.5, 1.5]
    assert torch.equal(again.net.centred.centre, plain.net.centred.centre)


def test_what_has_not_changed_is_as_the_program_builds_it(tmp_path: Path) -> None:
    def other() -> nn.Module:
        net = Net()
        net.drop.p, net.temperature = 0.3, 2.0
        return net

    training, again = Training(), Training(other)
    training.state.begin()
    training.net.norm.momentum = 0.9
    again.state.read(training.save(tmp_path / "state"))
    assert (again.net.drop.p, again.net.temperature, again.net.norm.momentum) == (0.3, 2.0, 0.9)


def test_a_value_that_comes_back_is_saved_again(tmp_path: Path) -> None:
    first, second, third = Training(), Training(), Training()
    first.state.begin()
    _change(first.net)
    second.state.read(first.save(tmp_path / "first"))
    third.state.read(second.save(tmp_path / "second"))
    assert (third.net.drop.p, third.net.norm.training) == (0.4, False)


def _with_teacher() -> Any:
    net: Any = Net()
    net.teacher, net.calls = [copy.deepcopy(net.out)], 0
    return net


def _with_object() -> Any:
    net: Any = Net()
    net.pace = Pace()
    return net


class Slow(torch.optim.SGD):
    """An optimizer of the user's that counts beside its state."""

    count = 0

    @override
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)


def _teach(training: Training) -> None:
    training.net.calls += 1
    with torch.no_grad():
        training.net.teacher[0].weight.mul_(0.5)


def _pace(training: Training) -> None:
    training.net.pace.count += 1


def _count(training: Training) -> None:
    training.optimizer = Slow(training.net.parameters(), 0.1)
    training.state = TrainState(model=training.net, optimizer=training.optimizer)
    training.state.begin()
    training.step()


@pytest.mark.parametrize(
    ("net", "change", "named"),
    [
        (_with_teacher, _teach, "model[0].teacher,model[0].calls (2 in all)"),
        (_with_object, _pace, "model[0].pace (1 in all)"),
        (Net, _count, "optimizer[0].count (1 in all)"),
    ],
)
def test_what_is_not_kept_is_named_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    net: Callable[[], nn.Module],
    change: Callable[[Training], None],
    named: str,
) -> None:
    training = Training(net)
    training.state.begin()
    training.save(tmp_path / "state")
    assert "attributes_not_kept" not in caplog.text
    with caplog.at_level(logging.WARNING, "recovery.torch"):
        change(training)
        training.save(tmp_path / "state")
        training.save(tmp_path / "state")
    assert caplog.text.count(f"event=attributes_not_kept attributes={named}") == 1
    assert caplog.text.count("event=attributes_not_kept") == 1


def test_steps_alone_change_nothing_of_a_plain_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A recurrent layer holds its parameters in a list, and a module others that are registered elsewhere."""
    training = Training(lambda: nn.Sequential(Net(), nn.utils.parametrizations.weight_norm(nn.Linear(1, 3))))
    training.net[0].centred = nn.Identity()
    training.net.eval()
    training.state.begin()
    training.step()
    saved = torch.load(training.save(tmp_path / "state"), weights_only=True)
    assert "attributes" not in saved["outside_state_dict"]["model"][0]
    assert "attributes_not_kept" not in caplog.text


def test_what_each_rank_may_have_for_itself_is_not_given_live() -> None:
    net: Any = Net()
    parts = LiveParts({"model": [net]}, gradients=True)
    assert not parts.changed_attribute()
    net.eval()
    assert not parts.changed_attribute()
    net.train()
    net.norm.eval()
    assert "model[0].norm.training was changed" in parts.changed_attribute()
    net.norm.train()
    net.drop.p = 0.4
    assert "model[0].drop.p was changed" in parts.changed_attribute()

    net.norm.eval()
    parts.build_attributes()

    assert (net.drop.p, net.norm.training) == (0.1, True)
    assert not parts.changed_attribute()
