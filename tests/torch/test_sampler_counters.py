"""A sampler that counts its passes goes on in the order of its pass, whoever builds it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from typing_extensions import override

from recovery.torch.sampler_counters import SamplerCounters, samplers_of

ITEMS = list(range(9))


class Counting(Sampler[int]):
    def __init__(self, size: int = len(ITEMS)) -> None:
        self.size, self.passes = size, 0

    @override
    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        yield from torch.randperm(self.size, generator=torch.Generator().manual_seed(self.passes)).tolist()

    def __len__(self) -> int:
        return self.size


def plain(sampler: Counting) -> DataLoader[int]:
    return DataLoader(ITEMS, batch_size=2, sampler=sampler)  # type: ignore[arg-type]  # a list is one


def batched(sampler: Counting) -> DataLoader[int]:
    return DataLoader(ITEMS, batch_sampler=BatchSampler(sampler, 2, drop_last=False))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("build", [plain, batched])
def test_the_pass_has_the_same_order_again(build: object) -> None:
    assert callable(build)
    loader = build(Counting())
    counters = SamplerCounters(loader)
    assert not any(counters.state().values())
    list(loader)
    list(loader)
    begun = counters.state()
    third = [batch.tolist() for batch in loader]

    again = build(Counting())
    later = SamplerCounters(again)
    later.restore(begun)
    assert later.state() == begun, "it is saved again"
    assert [batch.tolist() for batch in again] == third


def test_what_no_pass_changes_is_the_scripts() -> None:
    loader = plain(Counting(9))
    counters = SamplerCounters(loader)
    list(loader)
    other = plain(Counting(4))
    SamplerCounters(other).restore(counters.state())
    assert isinstance(other.sampler, Counting)
    assert (other.sampler.size, other.sampler.passes) == (4, 1)


def test_each_sampler_is_looked_at_once() -> None:
    sampler = Counting()
    vars(sampler)["sampler"] = sampler
    assert sum(part is sampler for _, part in samplers_of(plain(sampler))) == 1
