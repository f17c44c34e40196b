"""What a node and the scheduler say to each other so that each rank's checkpoints lie on other hosts too, and in object storage."""

from __future__ import annotations

from typing import Annotated, Union

import msgspec

from recovery.core.held import HeldCheckpoint, Source
from recovery.core.ids import Generation
from recovery.core.message_fields import (
    Count,
    GenerationNumber,
    RankNumber,
    RequestName,
    RunNumber,
    ShortText,
)

SOURCES_MAX = 16
"""Nodes that one message names to fetch from. A rank has its own node and at most eight copies; twice as many are left of a move."""


class FetchFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a contribution was not taken from a node that was said to hold it."""

    source: Source
    reason: ShortText
    damaged: bool = False
    """It came and does not fit its digest, or the node says that it has none like this. False: the node was not reached, or was too slow."""


FetchFaults = Annotated[tuple[FetchFault, ...], msgspec.Meta(max_length=SOURCES_MAX)]


class CopyReport(msgspec.Struct, frozen=True, kw_only=True, tag="copy_report"):
    """A copy of another rank's contribution is complete, verified and durable on this node."""

    request_id: RequestName
    rank: RankNumber
    """Whose it is."""
    checkpoint: HeldCheckpoint
    """`path`: where the copy lies here."""


class CopyFailed(msgspec.Struct, frozen=True, kw_only=True, tag="copy_failed"):
    """A contribution could not be fetched from the nodes that are named. From another one it may have come."""

    request_id: RequestName
    run: RunNumber
    rank: RankNumber
    """Whose contribution; the node's own, where its plan names sources."""
    step: Count
    digest: ShortText
    failures: FetchFaults
    gives_up: bool = True
    """It did not come at all. False: it came from another source, and this says only what is wrong with these."""
    generation: GenerationNumber = Generation(0)
    """Of the plan that waited for it, which must go elsewhere when it did not come; 0: a copy was ordered."""
    reason: ShortText = ""
    """What is wrong on this node (no space left): no source is to blame. Empty: nothing."""


class CopyOrder(msgspec.Struct, frozen=True, kw_only=True, tag="copy_order"):
    """Fetch a contribution of another rank and hold it; `CopyReport` or `CopyFailed` follows. Sent again it changes nothing.

    The copy lies on what its original lies on: what is in memory there is held in memory here.
    """

    run: RunNumber
    rank: RankNumber
    """Whose it is."""
    checkpoint: HeldCheckpoint
    """As the rank has reported it; `path` names a file on its own node only, and says on what it lies."""
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)]
    """The nodes that have it, to be asked in this order."""


class CopiesKept(msgspec.Struct, frozen=True, kw_only=True, tag="copies_kept", omit_defaults=True):
    """All copies of a step are complete: holders may let older ones go."""

    run: RunNumber
    copied: Count
    """The newest step on disks of which all copies are complete; 0: none."""
    oldest: Count
    """The step before it of which that is true, or the same: copies from here on are kept."""
    oldest_in_memory: Count = 0
    """Copies in memory are kept from here on: they are for the newest step alone."""


class UploadOrder(msgspec.Struct, frozen=True, kw_only=True, tag="upload_order"):
    """Send the own contribution to a committed step to object storage, in the place of one ordered before; `UploadReport` follows."""

    run: RunNumber
    checkpoint: HeldCheckpoint
    """As the rank has reported it."""


class UploadReport(msgspec.Struct, frozen=True, kw_only=True, tag="upload_report"):
    """The contribution of an `UploadOrder` is in object storage, or never will be: the next step may follow once all ranks have said so."""

    request_id: RequestName
    step: Count
    digest: ShortText
    is_there: bool
    """False: the rank does not have it any more, or it is none that is sent."""


CopyFromNode = Union[CopyReport, CopyFailed, UploadReport]
CopyFromScheduler = Union[CopyOrder, CopiesKept, UploadOrder]
