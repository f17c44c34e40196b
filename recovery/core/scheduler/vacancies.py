"""What is known of vacant slots and of the standbys that may take them. Nothing of it is stored: the next scheduler asks again."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core.ids import NodeId


class OpenOffer(NamedTuple):
    """A standby was asked to take a slot, and has not answered yet."""

    standby: NodeId
    until_ms: int
    """Then the next one is asked."""
    is_last: bool = False
    """Everybody has declined: this one takes the rank with what it can read, as the lost one would if it came back."""


class Vacancies:
    """Changed by the modules of `membership` only."""

    def __init__(self) -> None:
        """No slot is offered."""
        self.offers: dict[str, OpenOffer] = {}
        """By the name of a vacant slot: which standby was asked to take it."""
        self.declined: dict[NodeId, dict[str, str]] = {}
        """By standby: the slots that it could not take, and why. Forgotten when it registers again, or says again what it can read."""
        self.reported_declines: dict[NodeId, set[tuple[str, str]]] = {}
        """By standby: which slots it could not take and why, as the log says already. Forgotten with the next plan, and when its next process comes."""
        self.pending_failure: set[NodeId] = set()
        """Lost nodes that their launchers have given up, and whose ranks a standby may still take: without one the job fails."""
