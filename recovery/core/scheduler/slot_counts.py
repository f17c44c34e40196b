"""Which nodes of a role hold a slot, are ready, are done, wait as standbys: counted as it changes, since a registration must not walk over every node."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core.ids import NodeId
from recovery.core.policy.ranks import SlotNames
from recovery.core.records import NodeRecord, NodeState


class Counted(NamedTuple):
    """What was counted of one node."""

    slot: str = ""
    """The slot whose name it holds, whether it is here or not; empty: none."""
    has_slot: bool = False
    is_vacant: bool = False
    """It has a slot and a rank, and is lost or has left."""
    is_absent: bool = False
    """It is lost, or gone with a rank, and the name of a slot is still its own."""
    is_standby: bool = False
    is_ready: bool = False
    is_done: bool = False


class Slots:
    """The counts of one role."""

    def __init__(self, *, forming: bool) -> None:
        """Begin without nodes.

        Args:
            forming: whether the job is forming, which says what a slot is.
        """
        self.forming = forming
        self.taken = self.ready = self.done = self.vacant = self.absent = self.standbys = 0
        self.names = SlotNames()
        """Of the slots that are taken."""
        self.holders: dict[str, NodeId] = {}
        """By the name of a slot: the node that holds that name, here or not."""
        self._counted: dict[NodeId, Counted] = {}

    def has_slot(self, record: NodeRecord, slot: str) -> bool:
        """While forming, a slot belongs to a node that is here; afterwards to one that has a rank of this run. A standby holds none."""
        if not slot:
            return False
        if self.forming:
            return record.state in (NodeState.LIVE, NodeState.SUSPECT)
        return record.rank is not None

    def count(self, record: NodeRecord, slot: str, *, said_ready: bool, done: bool) -> None:
        """Count what a node has become, instead of what was counted of it before."""
        before = self._counted.get(record.node_id, Counted())
        has_slot, is_here = self.has_slot(record, slot), record.state in (NodeState.LIVE, NodeState.SUSPECT)
        left_empty = bool(slot) and not is_here
        has_rank, is_lost = record.rank is not None, record.state is NodeState.LOST
        now = Counted(
            slot=slot,
            has_slot=has_slot,
            is_vacant=left_empty and has_rank,
            is_absent=left_empty and (has_rank or is_lost),
            is_standby=is_here and not slot,
            is_ready=has_slot and record.state is NodeState.LIVE and said_ready,
            is_done=has_slot and done,
        )
        self.taken += now.has_slot - before.has_slot
        self.ready += now.is_ready - before.is_ready
        self.done += now.is_done - before.is_done
        self.vacant += now.is_vacant - before.is_vacant
        self.absent += now.is_absent - before.is_absent
        self.standbys += now.is_standby - before.is_standby
        if (now.has_slot, now.slot) != (before.has_slot, before.slot):
            if before.has_slot:
                self.names.remove(NodeId(before.slot))
            if now.has_slot:
                self.names.add(NodeId(now.slot))
        if now.slot != before.slot:
            if self.holders.get(before.slot) == record.node_id:
                del self.holders[before.slot]
            if now.slot:
                self.holders[now.slot] = record.node_id
        self._counted[record.node_id] = now

    @property
    def all_ready(self) -> bool:
        """Is every node that has a slot live and ready?"""
        return self.ready == self.taken

    @property
    def all_done(self) -> bool:
        """Has every node that has a slot trained to the end?"""
        return self.done == self.taken
