"""Where the copying of checkpoints stands, and the sending of them to object storage. Nothing is decided here."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core.held import HeldCheckpoint, Source
from recovery.core.ids import ConnectionId, Incarnation, NodeId, Rank


class Fetching(NamedTuple):
    """What a rank fetches for its plan."""

    held: HeldCheckpoint
    sources: tuple[Source, ...]
    """The nodes that give it, as the plan says."""


class Copying:
    """One step is copied at a time; of the steps that are committed meanwhile the newest is next."""

    def __init__(self) -> None:
        """Nothing is copied."""
        self.step = 0
        """The step whose copies are being made; 0: none."""
        self.due = 0
        """The newest step that is committed on the disks, until its copies are begun; 0: none waits."""
        self.due_in_memory = 0
        """A newer one that is committed in memory. It waits for the one on the disks, which outlasts it."""
        self.in_memory = False
        """Is `step` one that was committed in memory?"""
        self.memory_refused = False
        """Has a holder said that it has no memory for copies? No more are ordered before the next plan."""
        self.pending: dict[tuple[Rank, NodeId], ConnectionId | None] = {}
        """By rank and holder: a copy of `step` that is not there yet, and the connection on which it was ordered."""
        self.holds_back = False
        """Has a holder so many orders that others wait until it has reported?"""
        self.has_failed = False
        """Was a copy of `step` given up? Then it is not copied as a whole."""
        self.copied: tuple[int, ...] = ()
        """The newest two steps on disks that are, oldest first. Each has all its copies."""
        self.copied_in_memory = 0
        """The newest step in memory that is; 0: none, or a newer one is copied on disks."""
        self.rescan = False
        """Has something changed by which an order may be sent?"""
        self.limited_to: int | None = None
        """How many copies there are instead of the number that was asked for, as an event has said."""
        self.folders_said = False
        """Has an event said that folders are not copied?"""
        self.fetching: dict[Rank, Fetching] = {}
        """Ranks whose own nodes do not have what the plan goes back to. Until they say that they have."""
        self.said_by: dict[NodeId, Incarnation] = {}
        """By node: the incarnation that said last, to this scheduler's process, which copies lie there."""
        self.not_given: set[tuple[str, str]] = set()
        """Addresses that did not give what a plan named, by digest. Another process of the node has another address."""
        self.not_taken: set[tuple[Rank, Incarnation, str]] = set()
        """Processes that could not take what their plan named, by digest."""

    @property
    def copied_step(self) -> int:
        """The newest step on disks of which all copies are complete; 0: none."""
        return self.copied[-1] if self.copied else 0

    @property
    def oldest(self) -> int:
        """Copies on disks of older steps may go; 0: none is too old."""
        return self.copied[0] if len(self.copied) > 1 else 0

    @property
    def oldest_in_memory(self) -> int:
        """Copies in memory of older steps may go; 0: none is too old."""
        return self.copied_in_memory or self.copied_step

    def stop(self) -> None:
        """What was ordered is not waited for any more."""
        self.step, self.has_failed, self.in_memory = 0, False, False
        self.pending.clear()

    def take_due(self) -> int:
        """Begin with a step that waits; gives it, or 0 where none does."""
        self.in_memory = not self.due
        self.step, self.rescan = self.due or self.due_in_memory, True
        if self.in_memory:
            self.due_in_memory = 0
        self.due = 0
        return self.step

    def note_committed(self, step: int, *, in_memory: bool) -> None:
        """A step is committed. What is older and in memory needs no copy beside one of it."""
        if in_memory:
            self.due_in_memory = 0 if self.memory_refused else step
            return
        self.due = step
        self.due_in_memory = self.due_in_memory if self.due_in_memory > step else 0

    def note_copied(self, step: int, *, in_memory: bool) -> None:
        """All copies of a step are complete."""
        if in_memory:
            self.copied_in_memory = step
            return
        self.copied = tuple(sorted({*self.copied, step}))[-2:]
        self.copied_in_memory = self.copied_in_memory if self.copied_in_memory > step else 0

    def left_behind(self, durable_step: int, reached: int) -> str:
        """For people: what is left where a host leaves that could not save, whose memory and perhaps disk go with it. Copies of each commit are on others.

        Args:
            durable_step: the newest that is on all ranks' own disks.
            reached: where training is, as far as it was heard.
        """
        kept = [
            (durable_step if durable_step > self.copied_step else 0, "on the ranks' own disks"),
            (self.copied_step, "on other hosts' disks, too"),
            (self.copied_in_memory, "in other hosts' memory"),
        ]
        said = [
            f"step {step} is {where}, {max(0, reached - step)} steps back" for step, where in kept if step
        ]
        return ", ".join(said) or f"no checkpoint is left, and {reached} steps are lost"

    def check(self) -> None:
        """Assert what is always true of it."""
        assert bool(self.pending) == bool(self.step), (
            f"a step is being copied while copies of it are missing, and no longer: {self.step}, {len(self.pending)}"
        )
        assert list(self.copied) == sorted(set(self.copied)), (
            f"copied steps differ and are in order: {self.copied}"
        )
        begun, due = self.step, self.due_in_memory if self.in_memory else self.due
        assert due == 0 or due > begun or not begun, (
            f"what waits is newer than what is copied: {due}, {begun}"
        )
        assert not self.copied_in_memory or self.copied_in_memory > self.copied_step, (
            f"what is copied in memory is newer: {self.copied_in_memory}, {self.copied_step}"
        )


class Uploading:
    """One step is sent to object storage at a time, by all ranks; of the steps that are committed on the disks meanwhile the newest is next."""

    def __init__(self) -> None:
        """Nothing is sent."""
        self.step = 0
        """The step that is being sent; 0: none."""
        self.due = 0
        """The newest committed step, until it is begun; 0: none waits."""
        self.sent_step = 0
        """The newest of which all ranks have sent their parts; 0: none, as far as this scheduler knows."""
        self.failure = ""
        """What a rank has last said of an upload of `step` that failed."""
        self.pending: dict[Rank, ConnectionId | None] = {}
        """Ranks whose parts of `step` are not there yet, and the connection on which each was ordered."""
        self.rescan = False
        """Has something changed by which an order may be sent?"""

    def begin(self, ranks: int) -> None:
        """Begin with what is due."""
        self.step, self.due, self.failure = self.due, 0, ""
        self.pending = dict.fromkeys(map(Rank, range(ranks)))

    def note_sent(self, rank: Rank, *, is_there: bool) -> None:
        """A rank's part is there. Where it never will be, nobody else's is waited for."""
        del self.pending[rank]
        if not is_there:
            self.stop()
        elif not self.pending:
            self.sent_step = self.step
            self.stop()

    def stop(self) -> None:
        """What was ordered is not waited for any more."""
        self.step, self.rescan = 0, True
        self.pending.clear()

    def go_back(self, step: int, durable_step: int) -> None:
        """A plan goes to `step`; that one is on all disks."""
        self.stop()
        self.sent_step = self.sent_step if self.sent_step <= step else 0
        self.due = durable_step if durable_step != self.sent_step else 0

    def check(self) -> None:
        """Assert what is always true of it."""
        assert bool(self.pending) == bool(self.step), (
            f"a step is being sent while parts of it are missing, and no longer: {self.step}, {len(self.pending)}"
        )
