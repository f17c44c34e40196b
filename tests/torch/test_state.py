"""What is saved comes back bit for bit in a fresh process, and what cannot come back is refused while there is time."""

from __future__ import annotations

import io
import os
import random
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import ResumableLoader, TrainState
from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.warm_up import warm_up
from recovery.training.state import CannotLayOutError
from tests.torch.fake_session import FakeSession
from tests.untraced import ROOT
from tests.warm.process import TORCH, run

_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
"""What the fresh process is forked with; `_resume` takes as many threads as the test has."""


class Rows(Dataset[Any]):
    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index)) + 0.1 * torch.randn(8) + random.random() + numpy.random.random()

    def __len__(self) -> int:
        return 38


class Training:
    """Dropout, two optimizers, two schedules, accumulated gradients, a batch norm, a stateful metric."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        random.seed(5)
        numpy.random.seed(5)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.optimizers = [
            torch.optim.SGD(self.net[0].parameters(), lr=0.01, momentum=0.9),
            torch.optim.AdamW(self.net[3].parameters(), lr=0.001),
        ]
        self.schedules: list[Any] = [
            torch.optim.lr_scheduler.StepLR(self.optimizers[0], 3, 0.5),
            torch.optim.lr_scheduler.OneCycleLR(self.optimizers[1], 0.01, total_steps=100),
        ]
        self.loader = ResumableLoader(Rows(), 4, session=FakeSession())
        self.state = TrainState(
            model=self.net, optimizer=self.optimizers, lr_scheduler=self.schedules, loader=self.loader
        )
        self.losses: list[float] = []

    def run(self, steps: int) -> None:
        while len(self.losses) < steps:
            for batch in self.state.batches:
                loss = torch.zeros(())
                for _ in range(2):
                    loss = self.net(batch).square().mean() / 2
                    loss.backward()
                for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                self.losses.append(loss.item())
                if len(self.losses) == steps:
                    return

    def bits(self) -> str:
        return repr([self.losses[-5:], [value.double().tolist() for value in self.net.state_dict().values()]])


def _resume(path: Path, steps: int, threads: int) -> None:
    """The fresh process of the test below."""
    torch.set_num_threads(threads)
    training = Training()
    torch.rand(17)
    training.state.read(path)
    training.losses = [0.0] * (steps - 20)
    training.run(steps)
    print(training.bits())


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["write", "snapshot"])
@pytest.mark.parametrize(
    "saved", [13, 10, pytest.param(20, marks=pytest.mark.cold_start(reason="as fresh as can be"))]
)
def test_a_fresh_process_goes_on_with_the_same_bits(tmp_path: Path, how: str, saved: int) -> None:
    training = Training()
    training.run(saved)
    path = tmp_path / "state.ckpt"
    with path.open("wb") as stream:
        if how == "write":
            training.state.write(stream)
            training.losses = [0.0] * saved
            training.run(saved + 20)
        else:
            snapshot = training.state.snapshot()
            training.losses = [0.0] * saved
            training.run(saved + 20)
            snapshot.write(stream)
    arguments = f"pathlib.Path({str(path)!r}), {saved + 20}, {torch.get_num_threads()}"
    code = f"import pathlib, tests.torch.test_state as t; t._resume({arguments})"
    command = [sys.executable, "-c", code]
    fresh = run(command, imports=TORCH, cwd=ROOT, env=_ENVIRONMENT, timeout=300)
    assert fresh.stdout.strip() == training.bits(), fresh.stderr


class Holder:
    """A part that holds what it is given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"deep": [{"value": self.value}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "deep" not in state:
            raise AttributeError("no depth")
        self.value = state["deep"][0]["value"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_safe_load_refuses_is_named_at_the_first_save(asynchronous: bool) -> None:
    state = TrainState(model=nn.Linear(1, 1), metric=Holder(Path("x")))
    with pytest.raises(CheckpointStateError, match=r"metric.*PosixPath.*\['deep'\]\[0\]\['value'\]"):
        state.snapshot() if asynchronous else state.write(io.BytesIO())


@pytest.mark.parametrize("value", [1, 2.5, "text", None, (1, [2]), torch.ones(2), {"a": {1, 2}}, 1j])
def test_what_a_safe_load_takes_comes_back(tmp_path: Path, value: Any) -> None:
    path, holder = tmp_path / "state", Holder(value)
    with path.open("wb") as stream:
        TrainState(model=nn.Linear(1, 1), part=holder).write(stream)
    again = Holder("other")
    TrainState(model=nn.Linear(1, 1), part=again).read(path)
    assert repr(again.value) == repr(value)


def _saved(tmp_path: Path, **parts: Any) -> Path:
    path = tmp_path / "state"
    with path.open("wb") as stream:
        TrainState(**parts).write(stream)
    return path


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = _saved(tmp_path, model=nn.Linear(2, 2), average=Holder(1))
    with pytest.raises(CheckpointStateError, match=r"lacks \['other'\] and has \['average'\]"):
        TrainState(model=nn.Linear(2, 2), other=Holder(1)).read(path)
    with pytest.raises(CheckpointStateError, match=r"(?s)model.*size mismatch"):
        TrainState(model=nn.Linear(3, 2), average=Holder(1)).read(path)
    with pytest.raises(CheckpointStateError, match="average: the checkpoint holds 1 of them, here are 2"):
        TrainState(model=nn.Linear(2, 2), average=[Holder(1), Holder(2)]).read(path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    torch.save([1, 2], path)
    with pytest.raises(CheckpointStateError, match="no training state"):
        TrainState(model=nn.Linear(1, 1)).read(path)
    path.write_bytes(b"no file of torch")
    with pytest.raises(CheckpointStateError, match="cannot be loaded"):
        TrainState(model=nn.Linear(1, 1)).read(path)


def test_a_part_without_state_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="scaler: int has no state_dict"):
        TrainState(model=nn.Linear(1, 1), scaler=3)


def test_tied_weights_and_versions_survive_a_snapshot() -> None:
    net = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)])
    net.append(net[0])
    stream, plain = io.BytesIO(), io.BytesIO()
    TrainState(model=net).snapshot().write(stream)
    TrainState(model=net).write(plain)
    copied = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)["parts"]["model"][0]
    assert copied["0.weight"].data_ptr() == copied["2.weight"].data_ptr()
    assert vars(copied)["_metadata"] == vars(net.state_dict())["_metadata"]


def _draws() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(numpy.random.normal()), torch.randn(()).item()]


def test_random_state_comes_back_and_taking_it_draws_nothing() -> None:
    # Leaves a second number in Python's generator.
    random.gauss(0, 1)
    numpy.random.normal()
    state = capture_random_state()
    assert repr(capture_random_state()) == repr(state)
    drawn = _draws()
    restore_random_state(state)
    assert _draws() == drawn


def test_warming_up_moves_no_generator() -> None:
    before = repr(capture_random_state())
    warm_up()
    assert repr(capture_random_state()) == before


def test_a_subclass_that_writes_in_its_own_way_is_asked_to_write() -> None:
    class Own(TrainState):
        @override
        def write(self, stream: BinaryIO) -> None:
            super().write(stream)

    assert TrainState(model=nn.Linear(1, 1)).lay_out().size
    with pytest.raises(CannotLayOutError, match="Own has a write"):
        Own(model=nn.Linear(1, 1)).lay_out()
