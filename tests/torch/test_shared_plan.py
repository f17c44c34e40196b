"""Each storage is written by one rank, and the ranks write about as much."""

from __future__ import annotations

import random

import pytest

from recovery.torch.shared_state import owners


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_every_storage_has_one_rank_and_none_much_more_than_its_share(world_size: int) -> None:
    draw = random.Random(world_size)
    for _ in range(30):
        sizes = {number: draw.choice([0, 4, 64, 4_096, 10**6]) for number in range(draw.randint(0, 200))}
        owner = owners(sizes, world_size)
        assert owner.keys() == sizes.keys()
        loads = [sum(sizes[n] for n, rank in owner.items() if rank == one) for one in range(world_size)]
        assert sum(loads) == sum(sizes.values())
        assert max(loads) <= sum(loads) / world_size + max(sizes.values(), default=0)


def test_every_rank_finds_the_same_plan_in_whatever_order_it_sees_the_storages() -> None:
    sizes = {number: number % 5 * 100 for number in range(50)}
    assert owners(sizes, 4) == owners(dict(reversed(sizes.items())), 4)
