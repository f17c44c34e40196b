"""What a rank's main thread does, as its heartbeats tell it: by that a rank that hangs is told from those that wait for it."""

from __future__ import annotations

from enum import Enum

import msgspec

from recovery.core.message_fields import Count, Text
from recovery.core.pace import Pace


class Phase(str, Enum):
    """One part of a step, in the order in which they come."""

    START = "start"
    """A generation's load, and its first step: a world is formed, code is compiled."""
    FIRST_BATCH = "first_batch"
    """The loader makes the first batch of a pass: its processes begin, a buffer fills."""
    DATA = "data"
    """The loader makes any other batch."""
    COMPUTE = "compute"
    """From a batch to the end of the optimizer's step, where that is told. A rank that waits for others in a collective waits here."""
    COMPILE = "compile"
    """Something is compiled behind the first step, too."""
    OWN_CODE = "own_code"
    """What a script does behind the optimizer's step, and callbacks: logs, metrics."""
    EVALUATION = "evaluation"
    """The same, with the model in evaluation mode."""
    SAVE = "save"
    """A checkpoint is saved."""
    STEP = "step"
    """A whole step of a loop that does not tell its parts, but for its saves."""
    END = "end"
    """Behind the last step: callbacks, a last evaluation, an export. Of a loop of the script's own nobody knows which step is the last."""

    __hash__ = str.__hash__
    """That of an Enum is Python's, and four times a step is often."""


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one rank, with a heartbeat."""

    phase: Phase
    lasting_ms: Count
    """By its own clock, without the time in which the whole process was stopped, or the main thread waited for a processor."""
    collectives: Count = 0
    """How many it has begun since its world was formed: who waits in one is ahead of whom it waits for. 0: not known."""
    longest_ms: dict[Phase, Count] = {}
    """The longest of each that this process has come through."""
    fresh_start_ms: Count = 0
    """The longest start that loaded nothing: one that loads may have to fill the same caches, and is judged by this beside its own kind."""
    stack: Text = ""
    """Where its main thread is, innermost frame last; empty: not looked at."""
    pace: Pace | None = None
    """How long its own work on a batch takes; None: it has not worked on enough, or its loop does not tell."""
