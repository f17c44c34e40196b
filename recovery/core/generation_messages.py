"""What ranks and the scheduler say to each other while a generation begins: the world forms, takes its state, and does its first step."""

from __future__ import annotations

import msgspec

from recovery.core.message_fields import Count, GenerationNumber, ShortText


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
