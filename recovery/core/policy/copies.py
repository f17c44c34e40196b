"""Which nodes hold copies of whose checkpoints?

A copy is for the day on which a host and its disk are gone, so it lies on another host than its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recovery.core.ids import Rank
from recovery.core.policy.ranks import natural_key

RANKS_NAMED = 8
"""Of those that load from other nodes, in a plan's reason. The rest is counted."""
COPIES_BY_ITSELF = 1
"""Copies of each contribution where a job's workers are on more than one host and MS_CHECKPOINT_COPIES is not set."""


def count(wanted: int | None, hosts: int) -> int:
    """Say how many copies of each contribution there can be, where MS_CHECKPOINT_COPIES is `wanted` (None: not set) and so many hosts give files."""
    return min(COPIES_BY_ITSELF if wanted is None else wanted, max(0, hosts - 1))


def holders(hosts: Mapping[Rank, str], copies: int) -> dict[Rank, tuple[Rank, ...]]:
    """Say which ranks hold each rank's copies, the nearest host first.

    The hosts in their order form a ring: the k-th copy goes to the k-th next host, so that a host that is lost takes at most one
    copy of a contribution with it, and to the rank there that has the same place among the ranks of its host, so that the load is spread.

    Args:
        hosts: by rank the host that it is on.
        copies: of each contribution; fewer than there are hosts, or none.
    """
    of_host: dict[str, list[Rank]] = {}
    for rank in sorted(hosts):
        of_host.setdefault(hosts[rank], []).append(rank)
    ring = sorted(of_host, key=natural_key)
    assert copies < max(1, len(ring)), "a copy beside its owner would be lost with it"
    found: dict[Rank, tuple[Rank, ...]] = {}
    for position, host in enumerate(ring):
        next_hosts = [of_host[ring[(position + far) % len(ring)]] for far in range(1, copies + 1)]
        for index, rank in enumerate(of_host[host]):
            found[rank] = tuple(others[index % len(others)] for others in next_hosts)
    return found


def who_fetches(fetching: Sequence[tuple[Rank, str]]) -> list[str]:
    """Say which ranks load what other nodes hold, and the names of the holders; an empty list: none does."""
    if not fetching:
        return []
    named = [f"rank {rank} loads the copy of {names}" for rank, names in fetching[:RANKS_NAMED]]
    if len(fetching) > RANKS_NAMED:
        named.append(f"and {len(fetching) - RANKS_NAMED} more ranks load copies")
    return [", ".join(named)]
