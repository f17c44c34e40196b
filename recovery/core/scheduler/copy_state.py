"""Where the copying of checkpoints stands. Nothing is decided here."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core.held import HeldCheckpoint, Source
from recovery.core.ids import ConnectionId, Incarnation, NodeId, Rank


class Fetching(NamedTuple):
    """What a rank fetches for its plan."""

    held: HeldCheckpoint
    sources: tuple[Source, ...]
    """Who gives it, as the plan says."""


class Copying:
    """One step is copied at a time; of the steps that are committed meanwhile the newest is next."""

    def __init__(self) -> None:
        """Nothing is copied."""
        self.step = 0
        """The step whose copies are being made; 0: none."""
        self.due = 0
        """The newest step that is committed on the disks, until its copies are begun; 0: none waits."""
        self.pending: dict[tuple[Rank, NodeId], ConnectionId | None] = {}
        """By rank and holder: a copy of `step` that is not there yet, and the connection on which it was ordered."""
        self.has_failed = False
        """Was a copy of `step` given up? Then it is not copied as a whole."""
        self.copied: tuple[int, ...] = ()
        """The newest two steps that are, oldest first. Each has all its copies."""
        self.look = False
        """Has something changed by which an order may be sent?"""
        self.limited_to: int | None = None
        """How many copies there are instead of the number that was asked for, as an event has said."""
        self.folders_said = False
        """Has an event said that folders are not copied?"""
        self.fetching: dict[Rank, Fetching] = {}
        """Ranks whose own nodes do not have what the plan goes back to. Until they say that they have."""
        self.not_given: set[tuple[str, str]] = set()
        """Addresses that did not give what a plan named, by digest. Another process of the node has another address."""
        self.not_taken: set[tuple[Rank, Incarnation, str]] = set()
        """Processes that could not take what their plan named, by digest."""

    @property
    def copied_step(self) -> int:
        """The newest step of which all copies are complete; 0: none."""
        return self.copied[-1] if self.copied else 0

    @property
    def oldest(self) -> int:
        """Copies of older steps may go; 0: none is too old."""
        return self.copied[0] if len(self.copied) > 1 else 0

    def stop(self) -> None:
        """What was ordered is not waited for any more."""
        self.step, self.has_failed = 0, False
        self.pending.clear()

    def note_copied(self, step: int) -> None:
        """All copies of a step are complete."""
        self.copied = tuple(sorted({*self.copied, step}))[-2:]

    def check(self) -> None:
        """Assert what is always true of it."""
        assert bool(self.pending) == bool(self.step), (
            f"a step is being copied while copies of it are missing, and no longer: {self.step}, {len(self.pending)}"
        )
        assert list(self.copied) == sorted(set(self.copied)), (
            f"copied steps differ and are in order: {self.copied}"
        )
        assert self.due == 0 or self.due > self.step or not self.step, (
            f"what waits is newer than what is copied: {self.due}, {self.step}"
        )
