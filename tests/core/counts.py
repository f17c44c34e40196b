"""What the scheduler's table has counted as it changed, against the same told anew."""

from __future__ import annotations

from recovery.core.scheduler.seats import recount
from recovery.core.scheduler.state import SchedulerState


def check_counts(table: SchedulerState) -> None:
    """Raises AssertionError when a count has drifted."""
    for role, seats in table.seats.items():
        counted = (seats.taken, seats.ready, seats.done, frozenset(seats.ids))
        told_anew = recount(table.seated(role))
        assert counted == told_anew, f"I14: the {role.value}s are counted as {counted}, they are {told_anew}"
