"""Shard maps call a tensor as its state does: what the author has called `_orig_mod` himself is no wrapper of torch.compile's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from recovery.torch import TrainState
from tests.torch.sharded_world import as_rank


class Odd(nn.Module):
    """Has the wrapper's name itself: without it two of its parameters would have one name."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self._orig_mod: Any = nn.Module()
        self._orig_mod.weight, self.weight = nn.Parameter(first), nn.Parameter(second)


class Averages:
    """Of a model, under names of its own, and below an entry of its own."""

    def __init__(self, average: torch.Tensor) -> None:
        self.by = {"_orig_mod.weight": average}

    def state_dict(self) -> dict[str, Any]:
        return {"by": self.by}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.by = dict(state["by"])


class Training:
    def __init__(self, mesh: DeviceMesh, filled: int) -> None:
        def whole(number: int) -> Any:
            values = torch.full((4, 2), float(number * filled))
            return distribute_tensor(values, mesh, (Shard(0),), src_data_rank=None)

        self.odd, self.averages = Odd(whole(1), whole(2)), Averages(whole(3))
        inner: Any = nn.Linear(2, 4, bias=False)
        inner.weight = nn.Parameter(whole(4))
        self.odd._orig_mod.weight.grad, inner.weight.grad = whole(5), whole(6)
        compiled: Any = torch.compile(inner, backend="eager")
        self.net = nn.Sequential(compiled)
        self.state = TrainState(model=[self.odd, self.net], averages=self.averages)
        self.inner = inner

    @property
    def locally(self) -> list[Any]:
        weights = [self.odd._orig_mod.weight, self.odd.weight, self.inner.weight]
        values = [*weights, *(one.grad for one in weights), *self.averages.by.values()]
        assert all(value is None or isinstance(value, DTensor) for value in values)
        return [None if value is None else value.to_local().tolist() for value in values]


def wrapped(key: Any) -> Any:
    """What a release that knew no plain names called an entry of the second model."""
    of_second = isinstance(key, tuple) and key[:2] == ("model", 1)
    return (*key[:2], "0._orig_mod.weight", *key[3:]) if of_second else key


def written(state: TrainState, path: Path, *, with_wrappers: bool) -> Path:
    stream = io.BytesIO()
    state.write(stream)
    payload = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    if with_wrappers:
        odd, net = payload["parts"]["model"]
        payload["parts"]["model"] = [odd, {"0._orig_mod.weight": net["0.weight"]}]
        payload["gradients"] = {wrapped(key): value for key, value in payload["gradients"].items()}
        for entry in payload["shards"]["tensors"]:
            kind, *inside = entry["at"]
            of_part = kind == "parts"
            entry["at"] = (kind, *wrapped(tuple(inside))) if of_part else (kind, wrapped(inside[0]))
    torch.save(payload, path)
    return path


@pytest.mark.parametrize("with_wrappers", [False, True])
def test_sharded_part_that_the_author_calls_so_is_read(tmp_path: Path, with_wrappers: bool) -> None:
    with as_rank(1, 2) as mesh:
        saved, fresh = Training(mesh, 1), Training(mesh, 0)
        assert fresh.locally != saved.locally

        fresh.state.read(written(saved.state, tmp_path / "state", with_wrappers=with_wrappers))

        assert fresh.locally == saved.locally
