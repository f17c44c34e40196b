"""A checkpoint as people are shown it: with the nodes that hold copies of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from recovery.core.ids import NodeId
from recovery.core.records import CheckpointRecord


class CopiedCheckpoint(CheckpointRecord, frozen=True, kw_only=True):
    """A rank's checkpoint and the nodes that hold copies of it."""

    copies: tuple[NodeId, ...] = ()
    """Nodes that hold a verified copy, sorted."""


def with_copies(record: CheckpointRecord, holders: Iterable[NodeId]) -> CopiedCheckpoint:
    """Say of a checkpoint which other nodes hold it."""
    return CopiedCheckpoint(**msgspec.structs.asdict(record), copies=tuple(sorted(holders)))
