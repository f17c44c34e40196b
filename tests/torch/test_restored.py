"""What is put back is what was saved, whatever a framework's own `load_state_dict` makes of it, or the restore is refused by name."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import TrainState, restored

_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "Adam": lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.01)),
    "Adam, fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, max_iter=3),
    "Muon": torch.optim.Muon,
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.05),
    "NAdam, named": lambda parameters: torch.optim.NAdam([("weight", one) for one in parameters], lr=0.05),
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
}
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class FullPrecisionCopies(torch.optim.Optimizer):
    """Keeps fp32 copies of the weights, deep in its state, beside a text and a number."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["deep"] = {"copies": [parameter.float().clone(), (torch.zeros(3),)]}
                    state["rule"], state["count"] = "plain", 0
                assert state["rule"] == "plain"
                whole = state["deep"]["copies"][0]
                whole.sub_(parameter.grad.float(), alpha=group["lr"])
                parameter.copy_(whole)
                state["count"] += 1
        return loss


def _trained(
    make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype
) -> tuple[TrainState, Callable[[], list[str]]]:
    torch.manual_seed(3)
    net = nn.Linear(6, 4, bias=False, dtype=dtype)
    optimizer = make(net.parameters())

    def step() -> list[str]:
        batch = torch.linspace(-1, 1, 30, dtype=dtype).reshape(5, 6)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        return [repr(value.double().tolist()) for value in net.state_dict().values()]

    return TrainState(model=net, optimizer=optimizer), step


def _saved(state: TrainState, path: Path) -> Path:
    with path.open("wb") as stream:
        state.write(stream)
    return path


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("name", [*_OPTIMIZERS, "full-precision copies"])
def test_every_optimizer_goes_on_with_the_same_bits(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    make = _OPTIMIZERS.get(name, FullPrecisionCopies)
    state, step = _trained(make, dtype)
    for _ in range(7):
        step()
    path = _saved(state, tmp_path / "state")
    expected = [step() for _ in range(7)]

    fresh_state, fresh_step = _trained(make, dtype)
    fresh_state.read(path)

    assert [fresh_step() for _ in range(7)] == expected


_SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "chained": lambda of: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(of), lr_scheduler.ExponentialLR(of, 0.9)]
    ),
    "cosine": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 5),
    "cyclic": lambda of: lr_scheduler.CyclicLR(of, 0.01, 0.1),
    "lambda": lambda of: lr_scheduler.LambdaLR(of, lambda epoch: 0.9**epoch),
    "one cycle": lambda of: lr_scheduler.OneCycleLR(of, 0.1, total_steps=50),
    "plateau": lambda of: lr_scheduler.ReduceLROnPlateau(of, patience=1),
    "sequential": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.ConstantLR(of), lr_scheduler.MultiStepLR(of, [4, 6])], milestones=[3]
    ),
}


@pytest.mark.parametrize("name", _SCHEDULES)
def test_no_schedule_of_torch_is_taken_for_another(tmp_path: Path, name: str) -> None:
    def made() -> tuple[TrainState, torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
        schedule = _SCHEDULES[name](optimizer)
        net = nn.Linear(2, 2)
        average = swa_utils.AveragedModel(net, use_buffers=True)
        scaler = torch.amp.GradScaler("cpu")
        return TrainState(model=net, optimizer=optimizer, lr_scheduler=schedule, average=average, scaler=scaler), optimizer, schedule  # fmt: skip

    state, optimizer, schedule = made()
    for number in range(5):
        optimizer.step()
        schedule.step(*([1.0 + number] if name == "plateau" else []))
    again, fresh, fresh_schedule = made()
    again.read(_saved(state, tmp_path / "state"))

    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert repr(fresh_schedule.state_dict()) == repr(schedule.state_dict())


class Holder:
    """A part that may put back something else than it was given."""

    def __init__(self, value: Any, *, change: Callable[[Any], Any] = lambda value: value) -> None:
        self.value, self._change = value, change

    def state_dict(self) -> dict[str, Any]:
        return {"kept": [self.value]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = self._change(state["kept"][0])


@pytest.mark.parametrize(
    ("value", "change", "said"),
    [
        (
            torch.ones(3, dtype=torch.float64),
            lambda value: value.float(),
            r"float64\[3\] and is float32\[3\]",
        ),
        (torch.ones(3), lambda value: value * 2, r"other values stand in it \(float32\[3\]\)"),
        (torch.tensor(0.0), lambda value: -value, "other values"),
        (torch.ones(3), lambda value: value[:2], r"was float32\[3\] and is float32\[2\]"),
        (torch.ones(3), lambda value: value.tolist(), r"was float32\[3\] and is \[1.0, 1.0, 1.0\]"),
        (torch.eye(2).to_sparse(), lambda value: value * 2, "other values"),
        (3, float, "was 3 and is 3.0"),
        (0.0, lambda value: -value, "was 0.0 and is -0.0"),
        ("text", lambda _: None, "was 'text' and is None"),
        ((1, 2), lambda value: value[:1], r"was \(1, 2\) and is \(1,\)"),
        ({"a": 1, "b": 2}, lambda _: {"a": 1}, r"\['b'\]: .*it is missing"),
        ({"a": 1}, lambda _: [1], "was a dict and is a list"),
        ({1, 2}, lambda _: {1, 3}, r"was \{1, 2\} and is \{1, 3\}"),
    ],
)
def test_what_an_object_makes_of_its_state_is_refused_by_name(
    tmp_path: Path, value: Any, change: Callable[[Any], Any], said: str
) -> None:
    restored._compared.discard(Holder)
    path = _saved(TrainState(model=nn.Linear(1, 1), meter=Holder(value)), tmp_path / "state")

    with pytest.raises(CheckpointStateError, match=rf"(?s)meter\['kept'\]\[0\].*{said}"):
        TrainState(model=nn.Linear(1, 1), meter=Holder(None, change=change)).read(path)


@pytest.mark.parametrize(
    "value",
    [float("nan"), torch.tensor(float("nan")), torch.eye(3).to_sparse(), torch.ones(7, dtype=torch.uint8)[1:],
     torch.ones(4, dtype=torch.complex64).conj(), torch.empty(0), {1: {"a"}}, b"bytes", 1j, torch.Size([2])],
)  # fmt: skip
def test_what_comes_back_as_it_was_is_not_refused(tmp_path: Path, value: Any) -> None:
    restored._compared.discard(Holder)
    path = _saved(TrainState(model=nn.Linear(1, 1), meter=Holder(value)), tmp_path / "state")

    TrainState(model=nn.Linear(1, 1), meter=Holder(None)).read(path)


def test_values_of_a_class_are_compared_once_in_a_process_and_dtypes_each_time(tmp_path: Path) -> None:
    restored._compared.discard(Holder)
    path = _saved(TrainState(model=nn.Linear(1, 1), meter=Holder(torch.ones(3))), tmp_path / "state")
    TrainState(model=nn.Linear(1, 1), meter=Holder(None)).read(path)

    TrainState(model=nn.Linear(1, 1), meter=Holder(None, change=lambda value: value * 2)).read(path)
    with pytest.raises(CheckpointStateError, match="float64"):
        TrainState(model=nn.Linear(1, 1), meter=Holder(None, change=lambda value: value.double())).read(path)


def test_model_of_another_dtype_is_refused(tmp_path: Path) -> None:
    path = _saved(TrainState(model=nn.Linear(2, 2)), tmp_path / "state")

    with pytest.raises(
        CheckpointStateError, match=r"model\['weight'\].*was float32\[2, 2\] and is bfloat16\[2, 2\]"
    ):
        TrainState(model=nn.Linear(2, 2, dtype=torch.bfloat16)).read(path)


def test_weights_that_are_tied_here_and_were_not_are_refused(tmp_path: Path) -> None:
    path = _saved(TrainState(model=nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])), tmp_path / "state")
    layer = nn.Linear(2, 2)

    with pytest.raises(CheckpointStateError, match=r"model\['0.weight'\]|model\['1.weight'\]"):
        TrainState(model=nn.ModuleList([layer, layer])).read(path)


def test_object_that_another_one_overwrites_is_refused(tmp_path: Path) -> None:
    class Resets(Holder):
        """Sets the learning rate of an optimizer when it is loaded."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            super().__init__(1)
            self._optimizer = optimizer

        @override
        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self._optimizer.param_groups[0]["lr"] = 7.0

    def made() -> TrainState:
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return TrainState(model=net, optimizer=optimizer, resets=Resets(optimizer))

    path = _saved(made(), tmp_path / "state")
    with pytest.raises(
        CheckpointStateError, match=r"optimizer\['param_groups'\]\[0\]\['lr'\].*was 0.1 and is 7.0"
    ):
        made().read(path)


@pytest.mark.parametrize("saves", [0, 3])
def test_value_that_becomes_unsafe_is_refused_at_its_save(saves: int) -> None:
    meter = Holder(1)
    state = TrainState(model=nn.Linear(1, 1), meter=meter)
    for _ in range(saves):
        state.write(io.BytesIO())
    meter.value = Path("x")

    with pytest.raises(CheckpointStateError, match=r"meter.*PosixPath at .*\['kept'\]\[0\]"):
        state.write(io.BytesIO())
