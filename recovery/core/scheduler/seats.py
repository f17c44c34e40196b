"""Who of a role holds a seat, is ready, is done: counted as it changes, since a registration must not walk over every node."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core.ids import NodeId
from recovery.core.policy.ranks import SeatedIds
from recovery.core.records import NodeRecord, NodeState


class Counted(NamedTuple):
    """What was counted of one node."""

    has_seat: bool = False
    is_ready: bool = False
    is_done: bool = False


class Seats:
    """The counts of one role."""

    def __init__(self, *, forming: bool) -> None:
        """Begin without nodes.

        Args:
            forming: whether the job is forming, which says what a seat is.
        """
        self.forming = forming
        self.taken = self.ready = self.done = 0
        self.ids = SeatedIds()
        self._counted: dict[NodeId, Counted] = {}

    def has_seat(self, record: NodeRecord) -> bool:
        """While forming, a seat belongs to who is here; afterwards to who has a rank of this run."""
        if self.forming:
            return record.state in (NodeState.LIVE, NodeState.SUSPECT)
        return record.rank is not None

    def count(self, record: NodeRecord, *, said_ready: bool, done: bool) -> None:
        """Count what a node has become, instead of what was counted of it before."""
        before = self._counted.get(record.node_id, Counted())
        has_seat = self.has_seat(record)
        now = Counted(
            has_seat=has_seat,
            is_ready=has_seat and record.state is NodeState.LIVE and said_ready,
            is_done=has_seat and done,
        )
        self.taken += now.has_seat - before.has_seat
        self.ready += now.is_ready - before.is_ready
        self.done += now.is_done - before.is_done
        if now.has_seat != before.has_seat:
            (self.ids.add if now.has_seat else self.ids.remove)(record.node_id)
        self._counted[record.node_id] = now

    @property
    def all_ready(self) -> bool:
        """Is everybody who has a seat live and ready?"""
        return self.ready == self.taken

    @property
    def all_done(self) -> bool:
        """Has everybody who has a seat trained to the end?"""
        return self.done == self.taken
