"""Which lost ranks a host starts beside its own, when nobody has taken them for long (MS_TAKEOVER_AFTER). Pure.

Each launcher decides alone, from the same answer of the scheduler. The first in order is due first, the next one only where the rank is
still missing that much later: because the first could not reach its files, or has no launcher. Where two start it all the same, the
scheduler gives the rank to one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from recovery.core.ids import NodeId
from recovery.core.policy.ranks import natural_key
from recovery.core.records import NodeState
from recovery.launch.job_view import KnownJob, KnownNode
from recovery.launch.node_ids import is_of

_GONE = (NodeState.LOST.value, NodeState.LEFT.value)


class MissingRank(NamedTuple):
    """A rank that nobody has."""

    rank: int
    holder: NodeId
    """The node that held it."""


def missing(job: KnownJob) -> tuple[KnownNode, ...]:
    """The nodes that are gone and hold a rank all the same, since nobody has taken it; by rank."""
    found = [node for node in job.nodes if node.rank is not None and node.state in _GONE]
    return tuple(sorted(found, key=lambda node: node.rank or 0))


def due(job: KnownJob, slots: Collection[str], after_ms: int) -> tuple[MissingRank, ...]:
    """Give the ranks that this host starts now.

    Args:
        job: the scheduler's answer.
        slots: first node ids of the slots of this host. What this launcher starts again itself is not missing.
        after_ms: how long a rank must be missing before the first host starts it.
    """
    ranks_of = Counter(node.host for node in job.nodes if _trains(node))
    ours = {node.host for node in job.nodes if _is_ours(node, slots) and _trains(node)}
    if not ours:
        return ()
    # The host that has the fewest ranks has most to spare.
    order = sorted(ranks_of, key=lambda host: (ranks_of[host], natural_key(host)))
    wait_ms = after_ms * (1 + min(order.index(host) for host in ours))
    return tuple(
        MissingRank(node.rank or 0, NodeId(node.node_id))
        for node in missing(job)
        if node.silent_ms >= wait_ms and not _is_ours(node, slots)
    )


def _is_ours(node: KnownNode, slots: Collection[str]) -> bool:
    return any(is_of(node.node_id, first) for first in slots)


def _trains(node: KnownNode) -> bool:
    return node.rank is not None and node.state == NodeState.LIVE.value
