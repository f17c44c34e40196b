"""What a rank reports of its checkpoints: one is there, one does not verify, one could not be saved."""

from __future__ import annotations

import msgspec

from recovery.core.held import HeldCheckpoint
from recovery.core.message_fields import Count, GenerationNumber, RequestName, ShortText


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint_report"):
    """A checkpoint is complete, digested and durable on this rank."""

    request_id: RequestName
    checkpoint: HeldCheckpoint


class CheckpointInvalid(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint_invalid"):
    """A checkpoint of the plan does not verify on this rank. The plan must step back."""

    request_id: RequestName
    generation: GenerationNumber
    step: Count
    path: ShortText
    reason: ShortText


class NotSaved(msgspec.Struct, frozen=True, kw_only=True, tag="not_saved"):
    """A checkpoint of this rank was not saved, or not sent to object storage. Training goes on, and older ones stay."""

    request_id: RequestName
    step: Count
    reason: ShortText
    in_memory: bool = False
    """It was to lie in memory: those on disks are not affected."""
    uploading: bool = False
    """It is saved: what failed is its upload. A release before this one takes it for a save that failed."""
