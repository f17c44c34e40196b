"""Which nodes hold copies of whose checkpoints, as far as they have said. A copy is one that was verified when it arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from recovery.core.copy_records import CopyRecord, CopyState, to_copy_record
from recovery.core.held import HeldCheckpoint, HeldCopy
from recovery.core.ids import NodeId, Rank
from recovery.core.policy import rollback
from recovery.core.records import GenerationRecord
from recovery.core.tiers import Tier, tier_of


class CopyIndex:
    """The copies of one run. Knows no connection and no time: who of the holders is here is the caller's business."""

    def __init__(self) -> None:
        """Nobody holds any."""
        self._held: dict[tuple[Rank, int], dict[NodeId, HeldCheckpoint]] = {}
        """By rank and step: who holds it."""
        self._damaged: set[tuple[NodeId, Rank, str]] = set()

    def load(self, records: Iterable[CopyRecord], generations: Sequence[GenerationRecord]) -> None:
        """Take over what is stored of this run."""
        for record in records:
            held = record.checkpoint
            if record.state is CopyState.DAMAGED:
                self._damaged.add((record.node_id, record.rank, record.digest))
            elif record.state is CopyState.HELD and rollback.in_lineage((held,), generations):
                self._held.setdefault((record.rank, record.step), {})[record.node_id] = held

    def holders(self, rank: Rank, step: int) -> Mapping[NodeId, HeldCheckpoint]:
        """Who holds a rank's contribution to a step."""
        return self._held.get((rank, step), {})

    def count(self, rank: Rank, step: int, tier: Tier) -> int:
        """How many hold a rank's contribution to a step on such a tier."""
        return sum(tier_of(held.path) is tier for held in self.holders(rank, step).values())

    def steps_of(self, rank: Rank) -> list[int]:
        """The steps of which somebody holds a rank's contribution, oldest first."""
        return sorted(step for of, step in self._held if of == rank)

    def add(self, node_id: NodeId, rank: Rank, checkpoint: HeldCheckpoint) -> CopyRecord:
        """A node has one more, verified just now; the row that says so."""
        self._damaged.discard((node_id, rank, checkpoint.digest))
        self._held.setdefault((rank, checkpoint.step), {})[node_id] = checkpoint
        return to_copy_record(node_id, rank, checkpoint, CopyState.HELD)

    def replace(
        self,
        node_id: NodeId,
        copies: Iterable[HeldCopy],
        reason: str = "its node does not have it any more",
    ) -> list[CopyRecord]:
        """A node has looked: it holds these and no others; the rows that change. Those known to be damaged are left out.

        Args:
            node_id: which.
            copies: what it holds.
            reason: why it does not hold the others.
        """
        before = self._of_node(node_id)
        now = {
            (one.rank, one.checkpoint.step): one.checkpoint
            for one in copies
            if (node_id, one.rank, one.checkpoint.digest) not in self._damaged
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
        """Holders let go what is older; the rows that say so.

        Args:
            oldest: what stays on disks.
            oldest_in_memory: what stays in memory.
        """
        goes = [
            (node_id, *key)
            for key, of_nodes in self._held.items()
            for node_id, held in of_nodes.items()
            if key[1] < (oldest_in_memory if tier_of(held.path) is Tier.MEMORY else oldest)
        ]
        return [self._take(*one, CopyState.GONE, "newer steps are copied") for one in goes]

    def roll_back(self, step: int) -> list[CopyRecord]:
        """Training goes on from `step`: what is newer belongs to a suffix that is trained again; the rows that say so."""
        return [
            self._take(node_id, rank, newer, CopyState.GONE, f"training went back to step {step}")
            for rank, newer in [key for key in self._held if key[1] > step]
            for node_id in list(self._held[rank, newer])
        ]

    def records(self) -> list[CopyRecord]:
        """All that is held, newest step first, by rank and holder."""
        found = [
            to_copy_record(node_id, rank, held, CopyState.HELD)
            for (rank, _), of_nodes in self._held.items()
            for node_id, held in of_nodes.items()
        ]
        return sorted(found, key=lambda one: (-one.step, one.rank, one.node_id))

    def _of_node(self, node_id: NodeId) -> dict[tuple[Rank, int], HeldCheckpoint]:
        return {key: of_nodes[node_id] for key, of_nodes in self._held.items() if node_id in of_nodes}

    def _take(self, node_id: NodeId, rank: Rank, step: int, state: CopyState, reason: str) -> CopyRecord:
        of_nodes = self._held[rank, step]
        held = of_nodes.pop(node_id)
        if not of_nodes:
            del self._held[rank, step]
        return to_copy_record(node_id, rank, held, state, reason)
