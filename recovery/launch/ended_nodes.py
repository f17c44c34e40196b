"""Nodes that the scheduler has not heard for a while, and whose processes this host knows to be dead: the scheduler hears of it.

A scheduler that was started again believes every process alive for a lease; it sees those of its own host itself. With MS_REJOIN=proof a
lost id may return as soon as its process is proven dead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from recovery import process_identity
from recovery.core.ids import NodeId
from recovery.core.messages import Exited, ProcessIdentity


class SilentNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is not connected, and of which it matters whether its process runs."""

    node_id: NodeId
    pid: int
    process: ProcessIdentity


def reports_of(nodes: Sequence[SilentNode]) -> list[Exited]:
    """What to tell of those whose processes have ended for certain. Of processes of other hosts nothing is known here."""
    return [
        Exited(
            node_id=node.node_id,
            pid=node.pid,
            reason=f"its process (pid {node.pid}) has ended",
            process=node.process,
        )
        for node in nodes
        if process_identity.has_ended(node.process, node.pid)
    ]
