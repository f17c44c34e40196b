"""Which node holds what of each step: each rank its own checkpoint, other nodes copies of it, as far as they have said.

A copy is one that was verified when it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from recovery.core.copy_records import CopyRecord, CopyState, to_copy_record
from recovery.core.held import HeldCheckpoint, HeldCopy
from recovery.core.ids import NodeId, Rank
from recovery.core.policy import rollback
from recovery.core.policy.retention import copy_is_needed
from recovery.core.policy.rollback import Unusable
from recovery.core.records import CheckpointRecord, GenerationRecord, to_held
from recovery.core.tiers import tier_of

_NOBODY: Mapping[NodeId, HeldCheckpoint] = MappingProxyType({})


class StepHolders:
    """The entry of one step in the checkpoint index."""

    def __init__(self) -> None:
        """Nobody holds anything."""
        self.own: dict[Rank, HeldCheckpoint] = {}
        """By rank: the checkpoint on its own node."""
        self.copies: dict[Rank, dict[NodeId, HeldCheckpoint]] = {}
        """By rank and holder: a copy that was verified when it arrived, where it lies on its holder."""
        self.was_committed = False
        """Is it a step of the lineage that all ranks held at some time?"""
        self.unusable: dict[Rank, Unusable] = {}
        """By rank: why its own checkpoint is not usable any more."""

    def __bool__(self) -> bool:
        """Is anything known of the step?"""
        return bool(self.own or self.copies or self.was_committed or self.unusable)

    def copies_of(self, rank: Rank) -> Mapping[NodeId, HeldCheckpoint]:
        """Which nodes hold a copy of a rank's contribution."""
        return self.copies.get(rank, _NOBODY)

    def lies_on_disks(self, ranks: Iterable[Rank], fetched: Mapping[Rank, HeldCheckpoint]) -> bool:
        """Do all these ranks hold it, and on disks? What one of them fetches lies where it is fetched from."""
        files = (self.own.get(rank) or fetched.get(rank) for rank in ranks)
        return all(file is not None and tier_of(file.path).is_durable for file in files)

    def is_copied(self, ranks: Iterable[Rank], count: int, *, durable: bool) -> bool:
        """Do so many nodes hold a copy of each rank's contribution on tiers that are durable, or that are not?"""
        return all(
            sum(tier_of(held.path).is_durable is durable for held in self.copies_of(rank).values()) >= count
            for rank in ranks
        )


class Steps(dict[int, StepHolders]):
    """By step: which node holds what of it."""

    def at(self, step: int) -> StepHolders:
        """For looking: what is not there is empty."""
        return self.get(step, _NOTHING)

    def open(self, step: int) -> StepHolders:
        """For changing: what is not there is made."""
        return self.setdefault(step, StepHolders())

    def of_rank(self, rank: Rank) -> dict[int, HeldCheckpoint]:
        """A rank's own checkpoints by step, oldest first."""
        return {step: holders.own[rank] for step, holders in sorted(self.items()) if rank in holders.own}


_NOTHING = StepHolders()


class CopyIndex:
    """The copies in the checkpoint index. Which of the holders are here is the caller's business."""

    def __init__(self, steps: Steps) -> None:
        """Of an index: it holds the ranks' own in the same entries."""
        self._steps = steps
        self._of_node: dict[NodeId, dict[tuple[Rank, int], HeldCheckpoint]] = {}
        """The same by holder, then by rank and step: each holder says at each plan what it holds."""
        self._damaged: set[tuple[NodeId, Rank, str]] = set()

    def load(self, records: Iterable[CopyRecord], generations: Sequence[GenerationRecord]) -> None:
        """Take over what is stored of this run."""
        usable: list[tuple[CopyRecord, HeldCheckpoint]] = []
        for record in records:
            if record.state is CopyState.DAMAGED:
                self._damaged.add((record.node_id, record.rank, record.digest))
            elif record.state is CopyState.HELD:
                usable.append((record, to_held(record)))
        of_lineage = {*rollback.in_lineage((held for _, held in usable), generations)}
        for record, held in usable:
            if held in of_lineage:
                self._put(record.node_id, record.rank, held)

    def holders(self, rank: Rank, step: int) -> Mapping[NodeId, HeldCheckpoint]:
        """The nodes that hold a rank's contribution to a step."""
        return self._steps.at(step).copies_of(rank)

    def one_of_each(self) -> dict[int, dict[Rank, HeldCheckpoint]]:
        """By step and rank: a copy of each contribution of which there is one."""
        return {
            step: {rank: next(iter(of_nodes.values())) for rank, of_nodes in holders.copies.items()}
            for step, holders in self._steps.items()
        }

    def steps_of(self, rank: Rank) -> list[int]:
        """The steps of which somebody holds a rank's contribution, oldest first."""
        return sorted(step for step, holders in self._steps.items() if holders.copies_of(rank))

    def steps_of_all(self, ranks: Iterable[Rank], count: int, *, durable: bool) -> list[int]:
        """The steps of which so many nodes hold each rank's contribution on such tiers, oldest first."""
        ranks = tuple(ranks)
        items = self._steps.items()
        return sorted(step for step, holders in items if holders.is_copied(ranks, count, durable=durable))

    def add(self, node_id: NodeId, rank: Rank, checkpoint: HeldCheckpoint) -> CopyRecord:
        """A node has one more, verified just now; the row that says so."""
        self._damaged.discard((node_id, rank, checkpoint.digest))
        self._put(node_id, rank, checkpoint)
        return to_copy_record(node_id, rank, checkpoint, CopyState.HELD)

    def replace(
        self, node_id: NodeId, copies: Iterable[HeldCopy], reason: str = "its node does not have it any more"
    ) -> list[CopyRecord]:
        """A node has looked: it holds these and no others; the rows that change, with the reason. Those known to be damaged are left out."""
        before = dict(self._of_node.get(node_id, {}))
        now = {
            (copy.rank, copy.checkpoint.step): copy.checkpoint
            for copy in copies
            if (node_id, copy.rank, copy.checkpoint.digest) not in self._damaged
        }
        gone = [
            self._take(node_id, rank, step, CopyState.GONE, reason)
            for rank, step in before
            if (rank, step) not in now
        ]
        new = [
            self.add(node_id, rank, held)
            for (rank, step), held in now.items()
            if before.get((rank, step)) != held
        ]
        return [*gone, *new]

    def reject(self, node_id: NodeId, rank: Rank, step: int, reason: str) -> CopyRecord | None:
        """A node's copy is damaged: it is never used again. The row that says so; None: it is not known to hold one."""
        held = self.holders(rank, step).get(node_id)
        if held is None:
            return None
        self._damaged.add((node_id, rank, held.digest))
        return self._take(node_id, rank, step, CopyState.DAMAGED, reason)

    def retire(self, oldest: int, oldest_in_memory: int) -> list[CopyRecord]:
        """Holders let go what is older, on disks and in memory; the rows that say so."""
        goes = [
            (name, rank, held.step)
            for rank, name, held in self._all()
            if not copy_is_needed(held, oldest=oldest, oldest_in_memory=oldest_in_memory)
        ]
        return [self._take(*key, CopyState.GONE, "newer steps are copied") for key in goes]

    def roll_back(self, step: int) -> list[CopyRecord]:
        """Training goes on from `step`: what is newer belongs to a suffix that is trained again; the rows that say so."""
        goes = [(name, rank, held.step) for rank, name, held in self._all() if held.step > step]
        return [self._take(*key, CopyState.GONE, f"training went back to step {step}") for key in goes]

    def records(self) -> list[CopyRecord]:
        """All that is held, newest step first, by rank and holder."""
        found = [to_copy_record(name, rank, held, CopyState.HELD) for rank, name, held in self._all()]
        return sorted(found, key=lambda record: (-record.step, record.rank, record.node_id))

    def _all(self) -> Iterator[tuple[Rank, NodeId, HeldCheckpoint]]:
        for name, of_node in self._of_node.items():
            for (rank, _), held in of_node.items():
                yield rank, name, held

    def _put(self, node_id: NodeId, rank: Rank, checkpoint: HeldCheckpoint) -> None:
        self._steps.open(checkpoint.step).copies.setdefault(rank, {})[node_id] = checkpoint
        self._of_node.setdefault(node_id, {})[rank, checkpoint.step] = checkpoint

    def _take(self, node_id: NodeId, rank: Rank, step: int, state: CopyState, reason: str) -> CopyRecord:
        copies = self._steps.at(step).copies
        held = copies[rank].pop(node_id)
        if not copies[rank]:
            del copies[rank]
        del self._of_node[node_id][rank, step]
        return to_copy_record(node_id, rank, held, state, reason)


class CopiedCheckpoint(CheckpointRecord, frozen=True, kw_only=True):
    """A rank's checkpoint and the nodes that hold copies of it."""

    copies: tuple[NodeId, ...] = ()
    """Nodes that hold a verified copy, sorted."""


def with_copies(record: CheckpointRecord, holders: Iterable[NodeId]) -> CopiedCheckpoint:
    """Say of a checkpoint which other nodes hold it."""
    return CopiedCheckpoint(**msgspec.structs.asdict(record), copies=tuple(sorted(holders)))
