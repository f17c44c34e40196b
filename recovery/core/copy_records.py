"""A copy of a checkpoint on another node, as the scheduler's store holds it."""

from __future__ import annotations

from enum import Enum

import msgspec

from recovery.core.held import HeldCheckpoint
from recovery.core.ids import Generation, NodeId, Rank, RunId


class CopyState(str, Enum):
    """What is known of a copy of a rank's checkpoint on another node."""

    HELD = "held"
    """Verified when it arrived, durable on its holder."""
    DAMAGED = "damaged"
    """It failed its digest when it was fetched. Never used again, never deleted by us."""
    GONE = "gone"
    """Its holder has let it go, or lost it."""


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of one rank's checkpoint of one step on another node. Key: run, step, rank, node_id."""

    run: RunId
    step: int
    rank: Rank
    node_id: NodeId
    """The node that holds it."""
    generation: Generation
    epoch: int
    step_in_epoch: int
    path: str
    """Where it lies on its holder."""
    digest: str
    file_bytes: int
    state: CopyState
    reason: str = ""
    replica: str = ""
    """As `HeldCheckpoint.replica`."""


def to_copy_record(
    node_id: NodeId, rank: Rank, held: HeldCheckpoint, state: CopyState, reason: str = ""
) -> CopyRecord:
    """Give a copy the form that is stored."""
    return CopyRecord(**msgspec.structs.asdict(held), node_id=node_id, rank=rank, state=state, reason=reason)
