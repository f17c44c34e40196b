"""What a launcher and the scheduler tell each other: how processes ended, and which nodes the scheduler holds for lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from recovery.core.converter import Converter
from recovery.core.ids import NodeId
from recovery.launch.reports import Report, reporter
from recovery.transport import inspection_client

POLL_S = 1.0
"""How often the scheduler is asked for its lost nodes."""
_GAP_MS = 5_000
"""Two answers that lie further apart do not show that the way was free between them, nor that this host stood still."""
_SEEN_MS = 3_000
"""A node that was lost by its silence comes back within a second if its process is well and its way is free again."""


class LostNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the scheduler holds for lost."""

    node_id: str
    pid: int
    reason: str


class LostNodes(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the scheduler."""

    returns_ms: int
    """How long a process that is well, and whose way is free, takes at most to be heard."""
    nodes: tuple[LostNode, ...]
    job: str = ""
    """Whose scheduler it is."""


_to_lost_nodes = Converter(LostNodes)


class Overdue:
    """Which lost nodes' processes do not come back by themselves. Pure: the answers and their times are arguments.

    A node may be lost because its host was cut off: then its process is well and comes back when the way is free. That the way is
    free, and for how long, is seen from here, on the same host: the scheduler answers. Who is lost all the same hangs.
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


class Asked(Protocol):
    """Gives the scheduler's lost nodes; None: it does not answer."""

    async def __call__(self) -> LostNodes | None:
        """Ask it."""


class WasMember(Protocol):
    """Tells whether the scheduler has ever let this process in; no, where it does not answer."""

    async def __call__(self, node_id: NodeId, pid: int) -> bool:
        """Ask it."""


class Contact(NamedTuple):
    """All of it."""

    report: Report
    lost_nodes: Asked
    was_member: WasMember


def contact(host: str, port: int) -> Contact:
    """With the scheduler at this address."""

    async def lost_nodes() -> LostNodes | None:
        try:
            return _to_lost_nodes(await inspection_client.ask(host, port, "/lost"))
        except (inspection_client.NoAnswerError, msgspec.ValidationError):
            return None

    async def was_member(node_id: NodeId, pid: int) -> bool:
        try:
            nodes: Sequence[dict[str, Any]] = (await inspection_client.ask(host, port, "/status"))["nodes"]
        except inspection_client.NoAnswerError:
            return False
        return any((node["node_id"], node.get("pid")) == (node_id, pid) for node in nodes)

    return Contact(reporter(host, port), lost_nodes, was_member)


def no_contact() -> Contact:
    """A dry run has no scheduler."""

    async def report(node_id: NodeId, pid: int, reason: str, *, gives_up: bool) -> None:
        return

    async def lost_nodes() -> None:
        return

    async def was_member(node_id: NodeId, pid: int) -> bool:
        return False

    return Contact(report, lost_nodes, was_member)
