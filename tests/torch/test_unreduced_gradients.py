"""Gradients that FSDP2 has not added over the ranks yet are in no parameter: a save that would lack them is refused by name."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from recovery.errors import CheckpointStateError
from recovery.torch import TrainState, unreduced_gradients
from tests.torch.sharded_world import as_rank

_BATCH = torch.ones(2, 4)


def _sharded(mesh: Any) -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(net[0], mesh=mesh)
    return fully_shard(net, mesh=mesh)


def _no_sync(net: Any) -> None:
    net.set_requires_gradient_sync(False)


def _no_sync_resharded(net: Any) -> None:
    net.set_requires_gradient_sync(False)
    net.set_reshard_after_backward(True)


def _no_all_reduce(net: Any) -> None:
    net.set_requires_all_reduce(False)


@pytest.mark.parametrize(
    ("shape", "accumulate"),
    [((2,), _no_sync), ((2,), _no_sync_resharded), ((2, 2), _no_sync), ((2, 2), _no_all_reduce)],
)
def test_save_that_would_lack_a_gradient_is_refused(
    shape: tuple[int, ...], accumulate: Callable[[Any], None]
) -> None:
    with as_rank(0, *shape) as mesh:
        net = _sharded(mesh)
        state = TrainState(model=net)
        accumulate(net)
        net(_BATCH).sum().backward()

        with pytest.raises(CheckpointStateError, match=r"model\[0\]\.\w.*not added over the ranks"):
            state.write(io.BytesIO())


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_gradients_that_were_added_are_saved(shape: tuple[int, ...]) -> None:
    with as_rank(0, *shape) as mesh:
        net = _sharded(mesh)
        state = TrainState(model=net)
        _no_sync(net)
        net(_BATCH).sum().backward()
        net.set_requires_gradient_sync(True)
        net(_BATCH).sum().backward()
        state.write(io.BytesIO())


def test_loop_that_clears_its_gradients_may_save_at_any_step() -> None:
    with as_rank(0, 2) as mesh:
        net = _sharded(mesh)
        _no_sync(net)
        net(_BATCH).sum().backward()

        TrainState(model=net, gradients=False).write(io.BytesIO())


def test_the_one_group_of_an_earlier_torch_is_found() -> None:
    """As torch 2.11 has it; 2.13 has a list."""
    assert unreduced_gradients._of_state(SimpleNamespace(_fsdp_param_group="one")) == ["one"]
    assert unreduced_gradients._of_state(SimpleNamespace(_fsdp_param_group=None)) == []
    assert unreduced_gradients._of_state(SimpleNamespace(_fsdp_param_groups=("one", "two"))) == ["one", "two"]
