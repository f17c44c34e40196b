"""A rank is offered to this process: it looks what it can read of that rank's files, and says so.

A standby is asked when a rank is lost. So is a fresh process whose node holds the place of another one: its own directories may hold
nothing of its rank.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Log
from recovery.core.ids import Rank
from recovery.core.rules import Rules
from recovery.core.worker.effects import FindCheckpoints, KeepPlaces, WorkerEffect
from recovery.core.worker.transitions import WorkerState


def waits_for(admitted: m.Admitted | None, rules: Rules) -> str:
    """Say what a process waits for that has no plan."""
    if admitted is not None and admitted.standby:
        return "a rank to take over (standby)"
    return f"all {rules.world_size} workers to be ready"


class Standby:
    """The offers that one process was made."""

    def __init__(self) -> None:
        """None was made."""
        self._offered: Rank | None = None
        """The rank that was offered last; None: none since the last plan."""

    def on_offer(self, offer: m.Offer, admitted: m.Admitted | None, state: WorkerState) -> list[WorkerEffect]:
        """Look for the files of the rank, if the main thread waits for a plan.

        Args:
            offer: of which rank, and what is known of its files.
            admitted: into which job; None: into none.
            state: what the main thread does.
        """
        if state is not WorkerState.IDLE or admitted is None:
            return []
        self._offered = offer.rank
        text = f"rank {offer.rank} of {offer.replaced} is offered to this process; looking for its files"
        return [
            Log("rank_offered", text),
            FindCheckpoints(admitted.job, offer.run, offer.rank, offer=offer),
        ]

    def on_joined(self) -> None:
        """The scheduler knows this process as a new one, and has offered it nothing: its store may have been lost."""
        self._offered = None

    def is_answer(self, rank: Rank | None) -> bool:
        """Is what was found what counts now? Once a rank was offered, what this process holds under its own name does not."""
        return rank == self._offered

    def on_plan(self, plan: m.Rollback) -> list[WorkerEffect]:
        """A plan has come: if it is of the rank that was offered, this process has taken it over."""
        offered, self._offered = self._offered, None
        return [KeepPlaces(plan.rank)] if offered == plan.rank else []
