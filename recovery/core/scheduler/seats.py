"""Who of a role holds a seat, counted as it changes: a registration must not walk over every node there is."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.core.policy.ranks import SeatedIds
from recovery.core.records import NodeState
from recovery.core.scheduler.node import Node


class Seats:
    """The counts of one role. `Table.count` keeps them true, `recount` says what they must be."""

    def __init__(self) -> None:
        """Nobody is here."""
        self.taken = self.ready = self.done = 0
        self.ids = SeatedIds()

    def change(self, node: Node, *, has_seat: bool) -> None:
        """Count what a node has become instead of what it was."""
        had_seat, was_ready, was_done = node.counted
        is_ready = has_seat and node.record.state is NodeState.LIVE and node.ready is not None
        is_done = has_seat and node.done
        self.taken += has_seat - had_seat
        self.ready += is_ready - was_ready
        self.done += is_done - was_done
        if has_seat != had_seat:
            (self.ids.add if has_seat else self.ids.remove)(node.record.node_id)
        node.counted = (has_seat, is_ready, is_done)

    @property
    def all_ready(self) -> bool:
        """Is everybody who has a seat live and ready?"""
        return self.ready == self.taken

    @property
    def all_done(self) -> bool:
        """Has everybody who has a seat trained to the end?"""
        return self.done == self.taken


def recount(seated: Iterable[Node]) -> tuple[int, int, int, frozenset[str]]:
    """What the counts of these nodes must be, told anew: tests compare it with what was counted."""
    nodes = list(seated)
    ready = sum(node.record.state is NodeState.LIVE and node.ready is not None for node in nodes)
    return (
        len(nodes),
        ready,
        sum(node.done for node in nodes),
        frozenset(node.record.node_id for node in nodes),
    )
