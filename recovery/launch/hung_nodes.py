"""Which lost nodes' processes hang, and which silent nodes' have ended: the scheduler cannot see either from another host.

A scheduler that was started again believes every process alive for a lease; it sees those of its own host itself. With MS_REJOIN=proof a
lost id may return as soon as its process is proven dead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from recovery import process_identity
from recovery.core.ids import NodeId
from recovery.core.messages import Exited, ProcessIdentity

_GAP_MS = 5_000
"""Two answers that lie further apart do not show that the network was free between them, nor that this host was paused."""
_SEEN_MS = 3_000
"""A node that was lost by its silence reconnects within a second if its process is well and the network is free."""


class SilentNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is not connected, and of which it matters whether its process runs."""

    node_id: NodeId
    pid: int
    process: ProcessIdentity


class LostNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the scheduler holds for lost."""

    node_id: str
    pid: int
    reason: str


class LostNodes(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the scheduler."""

    returns_ms: int
    """How long a process that is well, and whose network is free, takes at most to be heard."""
    nodes: tuple[LostNode, ...]
    silent: tuple[SilentNode, ...] = ()
    """Nodes that are not connected, where it matters whether their processes run."""
    job: str = ""
    """Whose scheduler it is."""


class HungNodes:
    """Finds the lost nodes whose processes do not come back by themselves. The answers and their times are arguments.

    A node may be lost because its host was cut off: then its process is well and reconnects when the network is free. That it is
    free, and for how long, is seen from here, on the same host: the scheduler answers. A node that is lost all the same hangs.
    """

    def __init__(self) -> None:
        """Nothing was answered yet."""
        self._free_since_ms: int | None = None
        self._newest_ms = 0
        self._lost_since_ms: dict[tuple[str, int], int] = {}

    def note(self, answer: LostNodes | None, now_ms: int) -> list[LostNode]:
        """Take an answer; None: there was none. Gives the nodes that are lost for good while their processes run."""
        if answer is None:
            self._free_since_ms, self._lost_since_ms = None, {}
            return []
        if self._free_since_ms is None or now_ms - self._newest_ms > _GAP_MS:
            self._free_since_ms, self._lost_since_ms = now_ms, {}
        self._newest_ms = now_ms
        before = self._lost_since_ms
        self._lost_since_ms = {
            (node.node_id, node.pid): before.get((node.node_id, node.pid), now_ms) for node in answer.nodes
        }
        if now_ms - self._free_since_ms < answer.returns_ms:
            return []
        return [
            node for node in answer.nodes if now_ms - self._lost_since_ms[node.node_id, node.pid] >= _SEEN_MS
        ]


def reports_of(nodes: Sequence[SilentNode]) -> list[Exited]:
    """What to tell of those whose processes have ended for certain. Of processes of other hosts nothing is known here."""
    return [
        Exited(
            node_id=node.node_id,
            pid=node.pid,
            reason=f"its process (pid {node.pid}) has ended",
            process=node.process,
            found=True,
        )
        for node in nodes
        if process_identity.has_ended(node.process, node.pid)
    ]
