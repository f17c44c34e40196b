"""Which rank writes which tensors of a state that all ranks share: each storage once, spread by size.

A pure function of what is the same on all ranks, so that no rank has to ask another.
"""

from __future__ import annotations

from collections.abc import Mapping


def owners(storage_bytes: Mapping[int, int], world_size: int) -> dict[int, int]:
    """Give each storage to the rank that has the fewest bytes so far, the largest storages first.

    Args:
        storage_bytes: size by number of the storage, in bytes.
        world_size: number of ranks, at least 1.

    Returns:
        The rank by number of the storage. No rank has more than the mean and the largest storage together.
    """
    loads = [0] * world_size
    owner: dict[int, int] = {}
    for number, size in sorted(storage_bytes.items(), key=lambda item: (-item[1], item[0])):
        rank = loads.index(min(loads))
        owner[number] = rank
        loads[rank] += size
    return owner
