"""An order of the user's that could not be kept exactly is refused by name, before anything is trained."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, IterableDataset
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import ResumableLoader
from tests.torch.fake_session import FakeSession
from tests.torch.test_sampled_order import SIZE, Told, loader, share


class Private(Told):
    """Draws from what nobody sees."""

    def __init__(self) -> None:
        self._random = random.Random(5)

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._random.sample(range(SIZE), SIZE))


class Counting(Told):
    """Counts its passes by itself."""

    @override
    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return super().__iter__()

    @override
    def set_epoch(self, epoch: int) -> None:
        pass


class Endless(Told):
    @override
    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(SIZE)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampler": Private()},
            "its Private gives another order each time that it is asked for the same pass",
        ),
        ({"sampler": Counting()}, "its Counting gives another order each time"),
        (
            {"batch_sampler": BatchSampler(Private(), 4, False)},
            "its BatchSampler gives another order each time",
        ),
        ({"sampler": Endless()}, "its Endless gives more than the 48 that its len"),
        (
            {"batch_sampler": BatchSampler(iter(range(SIZE)), 4, False)},
            "its BatchSampler has no length, so its passes may have no end",
        ),
        ({"sampler": iter(range(SIZE))}, "its range_iterator has no length, so its passes may have no end"),
        (
            {"sampler": share(1)},
            "its DistributedSampler gives the share of rank 1 of 2, and this is rank 0 of 2",
        ),
        (
            {"batch_sampler": BatchSampler(share(0, 1), 4, False)},
            ".*the share of rank 0 of 1, and this is rank 0 of 2",
        ),
        ({"batch_sampler": [[1]], "batch_size": 4}, "has a batch_sampler"),
        ({"batch_sampler": [[1]], "sampler": [1]}, "has a batch_sampler"),
    ],
)
def test_an_order_that_could_not_be_kept_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"ResumableLoader: {said}"):
        next(iter(loader(**options)))


@pytest.mark.parametrize(
    "options", [{"sampler": [1]}, {"batch_sampler": [[1]]}, {"persistent_workers": True}]
)
def test_a_stream_has_its_own_order_and_worker_processes_of_one_pass(options: dict[str, Any]) -> None:
    class Stream(IterableDataset[Any]):
        @override
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="of a map-style data set only"):
        ResumableLoader(Stream(), session=FakeSession(), num_workers=1, **options)
