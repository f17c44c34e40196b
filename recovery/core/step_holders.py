"""Which node holds what of one step: each rank its own checkpoint, other nodes copies of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from recovery.core.held import HeldCheckpoint
from recovery.core.ids import NodeId, Rank
from recovery.core.policy.given_up import Unusable
from recovery.core.tiers import Tier, tier_of

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

    def put_copy(self, node_id: NodeId, rank: Rank, checkpoint: HeldCheckpoint) -> None:
        """A node holds a copy of a rank's contribution."""
        self.copies.setdefault(rank, {})[node_id] = checkpoint

    def take_copy(self, node_id: NodeId, rank: Rank) -> HeldCheckpoint:
        """It does not hold it any more."""
        held = self.copies[rank].pop(node_id)
        if not self.copies[rank]:
            del self.copies[rank]
        return held

    def lies_on_disks(self, ranks: Iterable[Rank], fetched: Mapping[Rank, HeldCheckpoint]) -> bool:
        """Do all these ranks hold it, and on disks? What one of them fetches lies where it is fetched from."""
        files = (self.own.get(rank) or fetched.get(rank) for rank in ranks)
        return all(file is not None and tier_of(file.path).is_durable for file in files)

    def is_copied(self, ranks: Iterable[Rank], count: int, tier: Tier) -> bool:
        """Do so many nodes hold a copy of each rank's contribution on such a tier?"""
        return all(
            sum(tier_of(held.path) is tier for held in self.copies_of(rank).values()) >= count
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

    def drop_empty(self) -> None:
        """Forget the steps of which nothing is known any more."""
        for step in [step for step, holders in self.items() if not holders]:
            del self[step]


_NOTHING = StepHolders()
