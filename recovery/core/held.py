"""What a node says of the checkpoints that lie with it: its own, and copies of other ranks'."""

from __future__ import annotations

import msgspec

from recovery.core.message_fields import (
    Count,
    GenerationNumber,
    NodeName,
    RankNumber,
    Ranks,
    RunNumber,
    ShortText,
)


class HeldCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's contribution to the checkpoint of a step, as its manifest describes it."""

    run: RunNumber
    generation: GenerationNumber
    """The generation it was written in. With the plans of later generations this shows a rolled-back suffix."""
    step: Count
    """Global step, 1-based: this many steps are in it."""
    epoch: Count
    """1-based pass over the data that the step belongs to."""
    step_in_epoch: Count
    path: ShortText
    """Of its first file, or of the folder that its files are in, which ends with a slash; the manifest stands beside it."""
    digest: ShortText
    """What names it: the SHA-256 (hex) of its manifest; of a manifest of format 1, which lists one file, that of the file."""
    file_bytes: Count
    """Of all its files together."""
    replica: ShortText = ""
    """What names that which all ranks must have alike in it (`policy/replica_difference.py`); empty: nothing is to be compared."""

    @property
    def is_folder(self) -> bool:
        """Did a framework write it by itself, as a folder?"""
        return self.path.endswith("/")


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a training that its ranks share, as it is in one process's memory at the end of a step."""

    run: RunNumber
    generation: GenerationNumber
    """The newest in which this process held it: it trained there up to this step, or took it there from another rank."""
    step: Count
    epoch: Count
    step_in_epoch: Count
    structure: ShortText
    """SHA-256 (hex) of names, shapes and dtypes: a rank that takes it has the same."""
    replicas: Ranks = ()
    """The ranks that hold the same, this one among them, where tensors are spread over the ranks (HSDP); empty: all ranks do."""


SKIPPED_MAX = 32
"""Files that one Ready names at most, the newest; each has two texts of 1,024 characters. The rest is counted, and in the worker's own log."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A file that lies where this node's checkpoints belong and is none that it may use."""

    path: ShortText
    reason: ShortText
    step: Count = 0
    """Global step, where a manifest says it; 0: nobody knows."""


class HeldCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A contribution of another rank that a node holds, verified when it arrived."""

    rank: RankNumber
    """Whose it is."""
    checkpoint: HeldCheckpoint
    """`path`: where the copy lies on the node that holds it."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A node from which a contribution can be fetched by its digest."""

    node_id: NodeName
    address: ShortText
    """Of its file server (host:port). Another process of the same id has another one."""
