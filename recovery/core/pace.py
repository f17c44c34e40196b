"""What a rank's own work on a batch takes, as its heartbeats tell it: by that a slow rank is told from those that wait for it."""

from __future__ import annotations

from enum import Enum

import msgspec

from recovery.core.message_fields import Count


class HeldUp(str, Enum):
    """What the kernel says has kept a process from its work."""

    STARVED = "starved"
    """Its main thread could have run, and other programs had the processor."""
    THROTTLED = "throttled"
    """Its control group had used up its processor quota."""
    STOLEN = "stolen"
    """The machine is a virtual one, and its host had the processor."""
    SWAPPED = "swapped"
    """So much of its memory lies in swap."""


class Pace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one rank in one generation: medians over its newest batches."""

    batches: Count
    """How many it has worked on in this generation."""
    data_us: Count
    """From the wish for a batch to the batch."""
    compute_us: Count = 0
    """From the batch until this rank's own gradients are there, so without its wait for others; 0: not told."""
    held_up: dict[HeldUp, Count] = {}
    """Of the last seconds, in thousandths: of the time, or of the memory."""
