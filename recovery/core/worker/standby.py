"""A rank is offered to this process: it looks what it can read of that rank's files, and says so.

A standby is asked when a rank is lost. So is a fresh process whose node holds the place of another one: its own directories may hold
nothing of its rank.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Log
from recovery.core.ids import Rank
from recovery.core.rules import Rules
from recovery.core.worker.checkpoint_messages import CheckpointMessages
from recovery.core.worker.effects import KeepDirectories, WorkerEffect
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

    def on_offer(
        self,
        offer: m.Offer,
        admitted: m.Admitted | None,
        state: WorkerState,
        checkpoints: CheckpointMessages,
    ) -> list[WorkerEffect]:
        """Look for the files of the rank, if the main thread waits for a plan.

        Args:
            offer: of which rank, and what is known of its files.
            admitted: into which job; None: into none.
            state: what the main thread does.
            checkpoints: ask for the search.
        """
        if state is not WorkerState.IDLE or admitted is None:
            return []
        self._offered = offer.rank
        text = f"rank {offer.rank} of {offer.replaced} is offered to this process; looking for its files"
        return [Log("rank_offered", text), checkpoints.find_offered(admitted, offer)]

    def on_plan(self, plan: m.Rollback) -> list[WorkerEffect]:
        """A plan has come: if it is of the rank that was offered, this process has taken it over."""
        offered, self._offered = self._offered, None
        return [KeepDirectories(plan.rank)] if offered == plan.rank else []
