"""torch's own loader becomes one that knows its position, or is refused by name."""

from __future__ import annotations

import warnings
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
from recovery.torch.script import resumable
from tests.needs import needs_package
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
    found = division(DataLoader(DATA, batch_size=3, sampler=sampler, drop_last=True))
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


class OfTheUser(DistributedSampler[Any]):
    pass


@pytest.mark.parametrize("kind", [DistributedSampler, OfTheUser])
@pytest.mark.parametrize("drops", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ragged_shares_and_a_ragged_last_batch_are_each_as_torch_has_them(
    kind: type[DistributedSampler[Any]], drops: tuple[bool, bool], world_size: int
) -> None:
    for rank in range(world_size):
        sampler = kind(DATA, world_size, rank, shuffle=False, drop_last=drops[0])
        theirs: DataLoader[Any] = DataLoader(DATA, batch_size=4, sampler=sampler, drop_last=drops[1])
        ours = resumable(theirs, FakeSession(rank, world_size))
        assert [batch[0].tolist() for batch in ours] == [batch[0].tolist() for batch in theirs]
        assert ours.epoch == 1


class Backwards(RandomSampler):
    """Made of one of torch's, in an order of its own."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(9, -1, -1))


class SharedBackwards(DistributedSampler[Any]):
    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(9 - self.rank, -1, -2))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sampler": WeightedRandomSampler([0.0] * 8 + [1.0] * 2, 10)}, {8, 9}),
        ({"sampler": RandomSampler(DATA, replacement=True)}, None),
        ({"sampler": RandomSampler(DATA, num_samples=4)}, None),
        ({"sampler": RandomSampler(range(3))}, {0, 1, 2}),
        ({"sampler": DistributedSampler(range(4), 2, 0)}, {0, 1, 2, 3}),  # type: ignore[arg-type]  # torch takes anything with a length
        ({"sampler": [3, 1, 2, 4]}, [3, 2]),
        ({"sampler": Backwards(DATA)}, [9, 7, 5, 3, 1]),
        ({"sampler": SharedBackwards(DATA, 2, 0)}, [9, 7, 5, 3, 1]),
        ({"batch_sampler": [[0, 1, 5], [2, 3]]}, [0, 1, 5]),
    ],
)
def test_an_order_of_the_users_is_taken_over(options: dict[str, Any], expected: Any) -> None:
    loader = resumable(DataLoader(DATA, **options), FakeSession(0, 2))
    assert "sampler" in loader.division()
    rows = [int(row) for batch in loader for row in batch[0]]
    assert expected is None or (set(rows) <= expected if isinstance(expected, set) else rows == expected)


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {}, {"shuffle": True, "num_workers": 1, "persistent_workers": True}]
)
def test_torchdatas_loader_is_taken_as_torchs_own(options: dict[str, Any]) -> None:
    package = needs_package("torchdata.stateful_dataloader")
    options = {**options, "generator": torch.Generator().manual_seed(4)}
    with warnings.catch_warnings():
        # torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated.
        warnings.simplefilter("ignore")
        theirs = package.StatefulDataLoader(DATA, batch_size=2, **options)
    loaders = [resumable(theirs, FakeSession(rank, 2)) for rank in range(2)]
    of_torch = [
        resumable(DataLoader(DATA, batch_size=2, **options), FakeSession(rank, 2)) for rank in range(2)
    ]
    rows = [[int(row) for batch in loader for row in batch[0]] for loader in loaders]
    assert rows == [[int(row) for batch in loader for row in batch[0]] for loader in of_torch]
    assert sorted(rows[0] + rows[1]) == list(range(10))
    for loader in loaders + of_torch:
        loader.close()


def test_worker_processes_of_a_stream_that_would_stay_are_said_to_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "recovery.torch")
    division(DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True))
    assert "event=workers_not_kept" in caplog.text


def test_a_loader_without_batches_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="has a batch_size of None"):
        division(DataLoader(DATA, batch_size=None))


def test_steps_before_join_are_refused() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match=r"before recovery\.torch\.join"):
        next(rt.steps(DataLoader(DATA), model, torch.optim.SGD(model.parameters()), epochs=1))
