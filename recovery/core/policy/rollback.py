"""Which checkpoints lead to where training is now, which steps do all ranks hold, and why is a newer one given up?"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from recovery.core.ids import Rank, RunId
from recovery.core.messages import GenerationStart, HeldCheckpoint, LiveState
from recovery.core.policy import replica_difference
from recovery.core.records import GenerationRecord

_Held = TypeVar("_Held", HeldCheckpoint, LiveState)


def in_lineage(held: Iterable[_Held], generations: Sequence[GenerationRecord]) -> tuple[_Held, ...]:
    """Keep the checkpoints, or the states in memory, that lead to where training is now.

    A checkpoint written in generation g at step s belongs to a rolled-back suffix when a later generation started below s.
    Its bits may differ from those of the steps trained again, so it never mixes with files of the newer history.
    """
    held = tuple(held)
    oldest = min((checkpoint.generation for checkpoint in held), default=0)
    # Only later ones say anything. A job that has failed for a year has 8,760, and each save of each rank asks.
    starts = _lowest_starts([generation for generation in generations if generation.generation > oldest])
    return tuple(
        checkpoint
        for checkpoint in held
        if checkpoint.step <= _lowest_after(starts.get(checkpoint.run, []), checkpoint.generation)
    )


def start_of(record: GenerationRecord) -> GenerationStart:
    """Where a generation began, as a message says it."""
    return GenerationStart(
        generation=record.generation,
        step=record.step,
        epoch=record.epoch,
        step_in_epoch=record.step_in_epoch,
    )


def is_in_lineage(generation: int, step: int, began: Iterable[GenerationStart]) -> bool:
    """As `in_lineage`, of one step that was trained in a generation; `began`: where later ones began."""
    return all(start.step >= step for start in began if start.generation > generation)


def _lowest_starts(generations: Iterable[GenerationRecord]) -> dict[RunId, list[tuple[int, int]]]:
    """By run and in order: each generation with the lowest step at which it or a later one began."""
    found: dict[RunId, list[tuple[int, int]]] = {}
    for record in sorted(generations, key=lambda record: record.generation, reverse=True):
        later = found.setdefault(record.run, [])
        later.append((record.generation, min(record.step, later[-1][1]) if later else record.step))
    return {run: later[::-1] for run, later in found.items()}


def _lowest_after(starts: Sequence[tuple[int, int]], generation: int) -> float:
    position = bisect_right(starts, (generation, math.inf))
    return starts[position][1] if position < len(starts) else math.inf


def positions_differ(own: Mapping[Rank, HeldCheckpoint]) -> str:
    """Say where the ranks stand with a step that each of them holds, if that is not one place; empty: it is.

    Ranks whose loaders have not given the same number of batches go on from positions that never were together: no step is common to them.
    """
    positions: dict[tuple[int, int], Rank] = {}
    for rank in sorted(own):
        positions.setdefault((own[rank].epoch, own[rank].step_in_epoch), rank)
    if len(positions) <= 1:
        return ""
    return ", ".join(f"rank {rank} at step {at} of epoch {epoch}" for (epoch, at), rank in positions.items())


def is_at_one_place(own: Mapping[Rank, HeldCheckpoint], world_size: int) -> bool:
    """Does every rank of 0..world_size-1 hold a step, and are all at one place in the data?"""
    is_held_by_all = len(own) >= world_size and all(Rank(rank) in own for rank in range(world_size))
    return is_held_by_all and not positions_differ(own)


def is_common(own: Mapping[Rank, HeldCheckpoint], world_size: int) -> bool:
    """As `is_at_one_place`, and do they hold the same, as far as their files say it?"""
    return is_at_one_place(own, world_size) and not replicas_differ(own)


def replicas_differ(own: Mapping[Rank, HeldCheckpoint]) -> bool:
    """Do the ranks' files of a step say that what must be alike in them is not?"""
    return replica_difference.digests_differ({held.replica for held in own.values()})


def common_steps(
    held: Mapping[int, Mapping[Rank, HeldCheckpoint]], world_size: int, committed: Collection[int] = ()
) -> list[int]:
    """Find the steps that are common, oldest first. One that was committed stays common, whatever its files say of being alike."""
    return sorted(
        step
        for step, own in held.items()
        if (is_at_one_place if step in committed else is_common)(own, world_size)
    )


def by_step(held: Iterable[tuple[Rank, HeldCheckpoint]]) -> dict[int, dict[Rank, HeldCheckpoint]]:
    """Arrange checkpoints of ranks by step and rank. Of two of one rank and step the later one counts."""
    found: dict[int, dict[Rank, HeldCheckpoint]] = {}
    for rank, checkpoint in held:
        found.setdefault(checkpoint.step, {})[rank] = checkpoint
    return found


# --- why not to a newer step that was committed: one sentence, the same for the scheduler, the log and `recovery plan` -------

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
    is_missing: bool = False
    """Nobody found it, and nobody knows more."""


def why_given_up(given_up: Mapping[int, Mapping[Rank, Unusable]]) -> str:
    """Say which committed steps (newest first) are given up, and whose files are the reason. Empty when nothing is given up."""
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
