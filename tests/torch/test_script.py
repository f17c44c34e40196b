"""torch's own loader becomes one that knows its position, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from typing_extensions import override

import recovery.torch as rt
from recovery.errors import UsageError
from recovery.torch.script import _check_schedules, resumable
from tests.torch.fake_session import FakeSession

DATA = TensorDataset(torch.arange(10))


class Stream(IterableDataset[int]):
    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def division(loader: DataLoader[Any]) -> dict[str, Any]:
    return resumable(loader, FakeSession(world_size=2)).division()


def test_what_a_loader_and_its_sampler_say_is_taken_over() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(
        DATA, num_replicas=2, rank=0, shuffle=False, seed=5, drop_last=True
    )
    found = division(DataLoader(DATA, batch_size=3, sampler=sampler))
    expected = {
        "batch_size": 3,
        "seed": 5,
        "shuffle": False,
        "drop_last": True,
        "world_size": 2,
        "len(dataset)": 10,
    }
    assert found == expected
    assert division(DataLoader(DATA, batch_size=2, shuffle=True))["shuffle"]
    assert not division(DataLoader(DATA, batch_size=2))["shuffle"]
    assert "len(dataset)" not in division(DataLoader(Stream(), batch_size=2))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": WeightedRandomSampler([1.0] * 10, 10)},
        {"sampler": RandomSampler(DATA, replacement=True)},
        {"sampler": RandomSampler(DATA, num_samples=5)},
        {"sampler": [3, 1, 2]},
        {"batch_sampler": [[0, 1], [2, 3]]},
        {"batch_size": None},
    ],
)
def test_an_order_that_cannot_be_restored_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="whose position cannot be restored"):
        division(DataLoader(DATA, **options))


def test_a_schedule_that_is_not_named_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with pytest.raises(UsageError, match="is not named"):
        _check_schedules([optimizer], {})
    _check_schedules(optimizer, {"lr_scheduler": schedule})
    _check_schedules(torch.optim.SGD(model.parameters()), {})


def test_steps_before_join_are_refused() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match=r"before recovery\.torch\.join"):
        next(rt.steps(DataLoader(DATA), model, torch.optim.SGD(model.parameters()), epochs=1))
