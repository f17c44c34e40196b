"""The order that a loader draws of a pass is noted batch by batch, and compared where the pass is drawn again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch.drawn_order import DrawnOrder

SIZE = 12


class Anew(Sampler[int]):
    """In another order each time."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(random.Random().sample(range(SIZE), SIZE))

    def __len__(self) -> int:
        return SIZE


def _loader(sampler: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(list(range(SIZE)), 2, sampler=sampler, **options)  # type: ignore[arg-type]  # a list is a data set


def test_a_pass_in_the_same_order_goes_on() -> None:
    order = DrawnOrder(_loader(), "field")
    batches = order.begin()
    received = [next(batches).tolist() for _ in range(3)]
    digest = order.digest_of(2)
    assert received == [[0, 1], [2, 3], [4, 5]]
    assert digest
    assert order.digest_of(4) == ""
    again = DrawnOrder(_loader(), "field")
    assert [batch.tolist() for batch in again.begin(2, digest)][2:4] == [[4, 5], [6, 7]]
    assert again.digest_of(2) == digest


@pytest.mark.parametrize("sampler", [Anew(), range(SIZE - 1, -1, -1)])
@pytest.mark.parametrize("has_batch_sampler", [False, True])
def test_another_order_is_an_error_at_the_batch_that_was_received_last(
    sampler: Any, has_batch_sampler: bool
) -> None:
    order = DrawnOrder(_loader(), "train_dataloaders")
    batches = order.begin()
    for _ in range(3):
        next(batches)
    loader = _loader(sampler)
    if has_batch_sampler:
        loader = DataLoader(list(range(SIZE)), batch_sampler=BatchSampler(sampler, 2, drop_last=False))  # type: ignore[arg-type]  # as above
    again = DrawnOrder(loader, "train_dataloaders").begin(3, order.digest_of(3))
    next(again), next(again)
    with pytest.raises(CheckpointStateError, match="BatchSampler gives does not repeat itself"):
        next(again)


def test_a_pass_that_has_become_shorter_is_an_error() -> None:
    order = DrawnOrder(_loader(), "field")
    digests = [order.digest_of(number) for number, _ in enumerate(order.begin(), start=1)]
    with pytest.raises(CheckpointStateError, match="ended before batch 6"):
        list(DrawnOrder(_loader(range(4)), "field").begin(6, digests[5]))


def test_indexes_that_are_no_numbers_and_single_ones_are_compared_too() -> None:
    keys = {name: torch.tensor(float(number)) for number, name in enumerate("abcd")}
    loaders: list[DataLoader[Any]] = [
        DataLoader(keys, batch_sampler=[["a", "b"], ["c", "d"]]),  # type: ignore[arg-type]  # a dict is a data set
        DataLoader(keys, batch_size=None, sampler=list("abcd")),  # type: ignore[arg-type]  # as above
    ]
    for loader in loaders:
        order = DrawnOrder(loader, "field")
        first = next(order.begin()).tolist()
        digest = order.digest_of(1)
        assert next(DrawnOrder(loader, "field").begin(1, digest)).tolist() == first


def test_the_loaders_own_sampler_is_back_behind_the_begin() -> None:
    loader = _loader()
    plain = loader.batch_sampler
    order = DrawnOrder(loader, "field")
    assert len(list(order.begin())) == len(loader)
    assert loader.batch_sampler is plain
