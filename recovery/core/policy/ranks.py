"""Who gets which rank?

All-integer node ids are the ranks. Otherwise ranks follow (host, node id) in natural order, worker_2 before worker_10,
so that the ranks of one host are contiguous. MindSpore sorts both as plain text, which puts worker_10 before worker_2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from recovery.core.ids import NodeId, Rank


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which runs of digits compare as numbers."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.findall(r"[0-9]+|[^0-9]+", text)
    )


def is_integer(node_id: str) -> bool:
    """Is the node id a rank by itself?"""
    return re.fullmatch(r"[0-9]+", node_id) is not None


def fault_of(node_id: NodeId, others: Iterable[NodeId], count: int) -> str | None:
    """Say why `node_id` cannot be ranked together with `others`, or None when it can.

    Args:
        node_id: the id that asks for admission.
        others: ids of the same role that hold a seat.
        count: number of seats of that role.
    """
    others = [other for other in others if other != node_id]
    if is_integer(node_id) and int(node_id) >= count:
        return f'MS_NODE_ID="{node_id}" is an integer and so the rank itself, which must be from 0 to {count - 1}'
    for other in others:
        if is_integer(node_id) != is_integer(other):
            return f'MS_NODE_ID="{node_id}" beside "{other}": integer ids are ranks, so either all ids are integers or none is'
        if is_integer(node_id) and int(node_id) == int(other):
            return f'MS_NODE_ID="{node_id}" and "{other}" are the same rank {int(node_id)}'
    return None


def assign(hosts: Mapping[NodeId, str]) -> dict[NodeId, Rank]:
    """Assign every node its rank.

    Args:
        hosts: address of the host of each node; ids that passed `fault_of`, as many as there are ranks.

    Returns:
        A rank for each, 0..len(hosts)-1.
    """
    if all(is_integer(node_id) for node_id in hosts):
        return {node_id: Rank(int(node_id)) for node_id in sorted(hosts, key=int)}
    ordered = sorted(hosts, key=lambda node_id: (natural_key(hosts[node_id]), natural_key(node_id)))
    return {node_id: Rank(rank) for rank, node_id in enumerate(ordered)}


def keep(assigned: Mapping[NodeId, Rank], kept: Mapping[NodeId, Rank]) -> dict[NodeId, Rank]:
    """Leave the ranks that nodes had in a rebuilt job; the others share what is free, in their order."""
    free = iter(sorted(set(assigned.values()) - set(kept.values())))
    return {
        node_id: kept[node_id] if node_id in kept else next(free)
        for node_id in sorted(assigned, key=lambda one: assigned[one])
    }


def local_places(hosts_by_rank: Mapping[Rank, str]) -> dict[Rank, tuple[int, int]]:
    """Give each rank its (local rank, local world size): its place among the ranks of its host."""
    by_host: dict[str, list[Rank]] = {}
    for rank in sorted(hosts_by_rank):
        by_host.setdefault(hosts_by_rank[rank], []).append(rank)
    return {rank: (index, len(ranks)) for ranks in by_host.values() for index, rank in enumerate(ranks)}
