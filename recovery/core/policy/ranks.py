"""Which node gets which rank?

All-integer node ids are the ranks. Otherwise ranks follow (host, node id) in natural order, worker_2 before worker_10,
so that the ranks of one host are contiguous. MindSpore sorts both as plain text, which puts worker_10 before worker_2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from recovery.core.ids import NodeId, Rank

_SECOND_START = 2
"""With which number the fresh ids of a slot begin."""
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which runs of digits compare as numbers."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.findall(r"[0-9]+|[^0-9]+", text)
    )


def is_integer(node_id: str) -> bool:
    """Is the node id a rank by itself?"""
    return re.fullmatch(r"[0-9]+", node_id) is not None


class SlotNames:
    """The ids of one role that hold a slot, by kind: whether one more fits beside them is asked at each registration."""

    def __init__(self, ids: Iterable[NodeId] = ()) -> None:
        """Begin with these."""
        self._names: dict[NodeId, None] = {}
        self._integers: dict[int, dict[NodeId, None]] = {}
        for node_id in ids:
            self.add(node_id)

    def __iter__(self) -> Iterator[NodeId]:
        """All of them."""
        yield from self._names
        for same in self._integers.values():
            yield from same

    def add(self, node_id: NodeId) -> None:
        """It has a slot now."""
        if is_integer(node_id):
            self._integers.setdefault(int(node_id), {})[node_id] = None
        else:
            self._names[node_id] = None

    def remove(self, node_id: NodeId) -> None:
        """It has none any more."""
        if not is_integer(node_id):
            del self._names[node_id]
            return
        same = self._integers[int(node_id)]
        del same[node_id]
        if not same:
            del self._integers[int(node_id)]

    def violation(self, node_id: NodeId, count: int) -> str | None:
        """Say why an id, which may hold a slot itself, cannot be ranked with the others of its role's `count` slots, or None when it can."""
        if not is_integer(node_id):
            return self._beside(node_id, next(iter(self._integers.values()), {}))
        rank = int(node_id)
        if rank >= count:
            return f'MS_NODE_ID="{node_id}" is an integer and so the rank itself, which must be from 0 to {count - 1}'
        for other in self._integers.get(rank, {}):
            if other != node_id:
                return f'MS_NODE_ID="{node_id}" and "{other}" are the same rank {rank}'
        return self._beside(node_id, self._names)

    @staticmethod
    def _beside(node_id: NodeId, others: Iterable[NodeId]) -> str | None:
        other = next(iter(others), None)
        if other is None:
            return None
        return f'MS_NODE_ID="{node_id}" beside "{other}": integer ids are ranks, so either all ids are integers or none is'


def assign(hosts: Mapping[NodeId, str]) -> dict[NodeId, Rank]:
    """Give every node its rank, 0..len(hosts)-1. The ids have passed `violation`, and are as many as there are ranks."""
    if all(is_integer(node_id) for node_id in hosts):
        return {node_id: Rank(int(node_id)) for node_id in sorted(hosts, key=int)}
    ordered = sorted(hosts, key=lambda node_id: (natural_key(hosts[node_id]), natural_key(node_id)))
    return {node_id: Rank(rank) for rank, node_id in enumerate(ordered)}


def keep(assigned: Mapping[NodeId, Rank], kept: Mapping[NodeId, Rank]) -> dict[NodeId, Rank]:
    """Leave the ranks that nodes had in a rebuilt job; the others share what is free, in their order."""
    free = iter(sorted(set(assigned.values()) - set(kept.values())))
    return {
        node_id: kept[node_id] if node_id in kept else next(free)
        for node_id in sorted(assigned, key=lambda name: assigned[name])
    }


def local_ranks(hosts_by_rank: Mapping[Rank, str]) -> dict[Rank, tuple[int, int]]:
    """Give each rank its (local rank, local world size): its position among the ranks of its host."""
    by_host: dict[str, list[Rank]] = {}
    for rank in sorted(hosts_by_rank):
        by_host.setdefault(hosts_by_rank[rank], []).append(rank)
    return {rank: (index, len(ranks)) for ranks in by_host.values() for index, rank in enumerate(ranks)}


def first_id(name: str) -> str:
    """The id whose slot a process was started in under a fresh one: worker_0 of worker_0.2.

    The first start keeps its id, so no fresh one ends with less than 2; and an address is a name of its own.
    """
    first, _, number = name.rpartition(".")
    is_fresh = first and number.isdecimal() and int(number) >= _SECOND_START
    return first if is_fresh and not _ADDRESS.fullmatch(name) else name


def slot_of(node_id: str, replaces: str) -> str:
    """The id of the first process of a slot: worker_0 for worker_0.3, which was started in the place of worker_0.2.

    Args:
        node_id: of a process of the slot.
        replaces: the lost id that it was started in the place of (MS_REPLACES); empty: none, so its own id is the first.
    """
    first = first_id(node_id)
    return first if replaces and first in (replaces, first_id(replaces)) else node_id


def is_in_slot(node_id: str, slot: str) -> bool:
    """Is it the id of a process of the slot whose first process had that id?"""
    return slot in (node_id, first_id(node_id))
