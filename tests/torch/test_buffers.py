"""Buffers that a start builds otherwise than training leaves them: lazy ones, and those of observers, whose shape the first pass decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer
from typing_extensions import override

from recovery.torch import TrainState


class Centre(nn.Module):
    """Makes its buffer with its first batch, as a user writes it who knows no LazyModuleMixin."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.mean: Any
        self.register_buffer("mean", UninitializedBuffer(), persistent=persistent)

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if isinstance(self.mean, UninitializedBuffer):
            self.mean.materialize(rows.shape[1:])
            self.mean.data.zero_()
        self.mean.data.lerp_(rows.mean(0), 0.1)
        centred: torch.Tensor = rows - self.mean
        return centred


def _centred(*, persistent: bool) -> nn.Module:
    return nn.Sequential(Centre(persistent=persistent), nn.LazyLinear(4), nn.LazyBatchNorm1d())


def _prepared() -> nn.Module:
    quantization = pytest.importorskip("torch.ao.quantization")
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).train()
    net.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    prepared: nn.Module = quantization.prepare_qat(net)
    return prepared


def _values(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in (*net.named_parameters(), *net.named_buffers())}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "build", [lambda: _centred(persistent=True), lambda: _centred(persistent=False), _prepared]
)
def test_what_the_first_pass_has_shaped_is_loaded_into_what_a_start_builds(
    build: Callable[[], nn.Module], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, here = build(), build()
    state = TrainState(model=net)
    state.begin()
    for _ in range(3):
        net(torch.randn(8, 3))
    with (tmp_path / "state").open("wb") as stream:
        state.write(stream)
    # An observer of channels begins with a scale of one, and the start loads as many as there are.
    assert "structure_changed" not in caplog.text
    TrainState(model=here).read(tmp_path / "state")
    expected, found = _values(net), _values(here)
    assert list(expected) == list(found)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_lazy_model_trains_on_and_is_named_where_a_death_would_cost_steps() -> None:
    state = TrainState(model=_centred(persistent=True))
    state.live_memory().begin(0)
    (reason,) = state.why_not_live()
    assert reason.startswith("model[0].1.weight is lazy")
