"""The slots of processes: a launcher keeps one process in each, under one id or, after a loss, under a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.core import messages as m

if TYPE_CHECKING:
    from tests.simulation.process import Process

SCHEDULER_HOST = "h0"


class Slot:
    """One slot."""

    def __init__(self, name: str, role: m.Role, host: str, *, standby: bool = False) -> None:
        """Begin empty.

        Args:
            name: the id of its first process, with which all later ids begin.
            role: of its processes.
            host: where they run.
            standby: its processes wait for a rank (MS_STANDBY).
        """
        self.name, self.role, self.host, self.standby = name, role, host, standby
        self.process: Process | None = None
        self.current, self.replaces = name, ""
        self.ids = [name]
        """Every id that was used here, oldest first."""
        self.is_surplus = False
        """The job was complete without the last process, and none is started here again."""
        self._starts = 0

    def begin_next(self, *, fresh: bool) -> None:
        """Another process is started here, as `recovery msrun --rejoin=new` does: a member that was lost is replaced under a fresh id.

        Args:
            fresh: the one before was a member, and an id of its own is given to the next.
        """
        self._starts += 1
        self.is_surplus = False
        if fresh and self._starts > 1:
            self.current, self.replaces = f"{self.name}.{self._starts}", self.current
            self.ids.append(self.current)


def slot_name(node_id: str) -> str:
    """Of which slot an id is."""
    return node_id.partition(".")[0]
