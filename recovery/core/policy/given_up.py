"""Why does the plan not go to a newer step that was committed? One sentence, the same for the scheduler, the log and `recovery plan`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from recovery.core.ids import Rank

MISSING = "missing"
LOST_MEMORY = "it was in memory, which its host has lost"
"""No fault of anybody's: that is what memory promises."""

STEPS_NAMED = 3
RANKS_NAMED = 8
REASON_CHARS_MAX = 300
"""A plan's reason is a line that people read: a directory that is gone on a host of 8 is named whole, a rack that is gone is counted."""


class Unusable(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's file of a committed step that cannot be gone back to any more."""

    path: str
    """Empty: nobody knows."""
    reason: str


def sentence(given_up: Mapping[int, Mapping[Rank, Unusable]]) -> str:
    """Say which committed steps are given up, and whose files are the reason.

    Args:
        given_up: by step, newest first; per step by rank.

    Returns:
        Empty when nothing is given up.
    """
    named = [
        f"step {step} was committed and is not usable: {whose(unusable)}"
        for step, unusable in list(given_up.items())[:STEPS_NAMED]
    ]
    if len(given_up) > STEPS_NAMED:
        named.append(f"and {len(given_up) - STEPS_NAMED} older committed steps")
    return "; ".join(named)


def whose(unusable: Mapping[Rank, Unusable]) -> str:
    """Name the ranks whose files of one step are lost, and why."""
    named = [
        f"rank {rank}: {file.reason.rstrip('.')[:REASON_CHARS_MAX]}"
        for rank, file in list(unusable.items())[:RANKS_NAMED]
    ]
    if len(unusable) > RANKS_NAMED:
        named.append(f"and {len(unusable) - RANKS_NAMED} more ranks")
    return ", ".join(named)
