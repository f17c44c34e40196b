"""What ranks and the scheduler say to each other of a generation and its checkpoints.

While it begins the world forms, takes its state, and does its first step. Then of each checkpoint: it is there, it does not verify, it could not be
saved.
"""

from __future__ import annotations

import msgspec

from recovery.core.held import HeldCheckpoint
from recovery.core.message_fields import Count, Fingerprints, GenerationNumber, RequestName, ShortText


class RendezvousOpen(msgspec.Struct, frozen=True, kw_only=True, tag="rendezvous_open"):
    """Rank 0 listens: the data plane of this generation can be formed at `address` (host:port)."""

    generation: GenerationNumber
    address: ShortText


class StateLoaded(msgspec.Struct, frozen=True, kw_only=True, tag="state_loaded"):
    """The rank has formed the world of this generation and has the state of the plan's step: of its checkpoint, of a rank's memory, or of step 0."""

    generation: GenerationNumber
    step: Count
    content: ShortText = ""
    """Digest of the state as it was taken from a rank's memory: the same on all ranks. Empty: it was loaded from a file."""
    not_live: ShortText = ""
    """Why this training cannot go on from a survivor's memory; empty: it can, or nobody asks for that."""


class FirstStep(msgspec.Struct, frozen=True, kw_only=True, tag="first_step"):
    """The rank has done the first step of this generation."""

    generation: GenerationNumber
    step: Count


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, tag="rendezvous"):
    """Where rank 0 of this generation listens."""

    generation: GenerationNumber
    address: ShortText


class StateAgreed(msgspec.Struct, frozen=True, kw_only=True, tag="state_agreed"):
    """All ranks have taken the same state from a rank's memory: the first step of the generation may begin."""

    generation: GenerationNumber


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint_report"):
    """A checkpoint is complete, digested and durable on this rank."""

    request_id: RequestName
    checkpoint: HeldCheckpoint
    replica: Fingerprints = {}
    """Of what every rank must have alike; empty: nothing is to be compared."""


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
