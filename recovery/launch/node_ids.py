"""The node ids of one process over its starts: a fresh one where the one before may have been a member of the job. Pure."""

from __future__ import annotations

import re
from collections.abc import Container

from recovery.core.ids import NodeId
from recovery.core.message_fields import NODE_ID_PATTERN


def is_of(node_id: str, first: str) -> bool:
    """Is it an id of the slot whose first process had that one?"""
    return node_id == first or node_id.startswith(f"{first}.")


class NodeIds:
    """The window of a lost id guards that id. A process with an id of its own takes the lost one's rank without waiting for it."""

    def __init__(self, first: NodeId, *, fresh: bool) -> None:
        """Begin with the id of the first start.

        Args:
            first: as placed; it names the slot, and all later ids begin with it.
            fresh: whether a process that is started again gets an id of its own; False: it keeps the first.
        """
        self._first, self.fresh = first, fresh
        self.current = first
        """Of the process that runs, or ran last."""
        self.replaces: NodeId | None = None
        """The newest id before it that may have been a member; None: there is none."""

    @property
    def variables(self) -> dict[str, str]:
        """What the process must find in its environment beside what it was placed with."""
        if self.replaces is None:
            return {}
        return {"MS_NODE_ID": self.current, "MS_REPLACES": self.replaces}

    def begin_next(
        self,
        number: int,
        *,
        was_member: bool | None,
        taken: Container[str] = (),
        wanted_slot: NodeId | None = None,
    ) -> str:
        """Choose the id of the next start. Gives what a person should know of the choice; empty: nothing.

        Args:
            number: of the start, 1-based; the fresh id ends with it, or with the next number that is free.
            was_member: whether the scheduler has ever let the process before it in; else its id guards nothing, and stays. None:
                nobody knows. Then the first is taken for one; a later id stays, since one that nobody knows names no rank.
            taken: ids that the scheduler knows: an earlier launcher of this slot may have used some.
            wanted_slot: whose rank the process before was to take over, and did not; None: it replaces the process before.
        """
        may_have_been = self.replaces is None if was_member is None else was_member
        if not self.fresh or not may_have_been:
            return ""
        return self._give_fresh(number, wanted_slot or self.current, taken)

    def begin_after(self, earlier: NodeId, *, taken: Container[str]) -> str:
        """Choose the id of the first start, where an earlier launcher has left one behind. Gives what a person should know."""
        return self._give_fresh(2, earlier, taken) if self.fresh else ""

    def _give_fresh(self, number: int, replaces: NodeId, taken: Container[str]) -> str:
        while (fresh := f"{self._first}.{number}") in taken:
            number += 1
        if re.match(NODE_ID_PATTERN, fresh) is None:
            return (
                f"its next node id would be {fresh}, which is longer than the 64 characters of an id; "
                f"it keeps {self.current} and waits until the rejoin window is over (MS_REJOIN_WINDOW)"
            )
        self.current, self.replaces = NodeId(fresh), replaces
        return ""
