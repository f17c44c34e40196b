"""The order of a script's data follows from the script's seed, the same on every rank, and stays what the job has begun with."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch.loader import ResumableLoader
from recovery.torch.script import resumable
from tests import pace
from tests.torch.fake_session import FakeSession
from tests.untraced import ROOT
from tests.warm.process import TORCH, Process

DATA = TensorDataset(torch.arange(20))


def rows(loader: ResumableLoader) -> list[int]:
    return [int(row) for batch in loader for row in batch[0]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_program(seed: int) -> DataLoader[Any]:
    torch.manual_seed(seed)
    return DataLoader(DATA, shuffle=True)


_MADE: list[Callable[[int], DataLoader[Any]]] = [
    by_program,
    lambda seed: DataLoader(DATA, shuffle=True, generator=seeded(seed)),
    lambda seed: DataLoader(DATA, sampler=RandomSampler(DATA, generator=seeded(seed))),
    lambda seed: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 20, 20, generator=seeded(seed))),
]


@pytest.mark.parametrize("made", _MADE)
def test_another_seed_is_another_order(made: Callable[[int], DataLoader[Any]]) -> None:
    first, other, again = (rows(resumable(made(seed), FakeSession())) for seed in (1, 2, 1))
    assert first == again != other


@pytest.mark.parametrize("made", _MADE)
def test_a_job_goes_on_in_the_order_that_it_has_begun_with(
    made: Callable[[int], DataLoader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "recovery.torch")
    begun = resumable(made(1), FakeSession())
    whole = rows(resumable(made(1), FakeSession()))
    batches = iter(begun)
    used = [int(next(batches)[0]) for _ in range(7)]
    state = begun.state_dict()

    here = resumable(made(2**62 + 5), FakeSession())
    here.load_state_dict(state)
    assert used + rows(here) == whole
    assert "event=order_seed_kept the order of the data follows from seed 1," in caplog.text


def test_a_checkpoint_of_an_earlier_release_keeps_its_order() -> None:
    earlier = ResumableLoader(DATA, 1, session=FakeSession(), seed=0)
    whole = rows(ResumableLoader(DATA, 1, session=FakeSession(), seed=0))
    next(iter(earlier))
    for gone in ((), ("of", "samples")):
        here = resumable(by_program(3), FakeSession())
        here.load_state_dict({key: value for key, value in earlier.state_dict().items() if key not in gone})
        assert rows(here) == whole[1:]


def _rank(rank: int, address: str) -> None:
    """A process of the test below, whose generator has a seed of its own."""
    store = FileStore(address, 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    seeds = [resumable(made(8 + rank), FakeSession(rank, 2)).division()["seed"] for made in _MADE]
    given: DistributedSampler[Any] = DistributedSampler(DATA, seed=5)
    seeds.append(resumable(DataLoader(DATA, sampler=given), FakeSession(rank, 2)).division()["seed"])
    distributed.destroy_process_group()
    assert seeds == [8, 8, 8, 8, 5]


@pytest.mark.cluster
def test_rank_0_decides(tmp_path: Path) -> None:
    ranks = [
        Process(
            [
                sys.executable,
                "-c",
                f"import tests.torch.test_order_seed as t; t._rank({rank}, {str(tmp_path / 'store')!r})",
            ],
            imports=TORCH,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    assert [rank.wait(pace.HANG_S) for rank in ranks] == [0, 0]


class Doubled(DataLoader[Any]):
    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # as users write it
        return (2 * batch for batch in super().__iter__())


class DoubledBelow(DataLoader[Any]):
    @override
    def _get_iterator(self) -> Any:
        return (2 * batch for batch in super()._get_iterator())


@pytest.mark.parametrize(("kind", "method"), [(Doubled, "__iter__"), (DoubledBelow, "_get_iterator")])
def test_a_loader_that_makes_something_of_its_batches_is_refused_by_name(
    kind: type[DataLoader[Any]], method: str
) -> None:
    with pytest.raises(UsageError, match=f"{kind.__name__} has an {method} of its own"):
        resumable(kind(DATA), FakeSession())
