"""Whose memory does everybody go on from? That of the rank that is furthest, if that is further than every common checkpoint.

Where that is none, one rank's checkpoint of a newer step that was committed serves as well: all ranks held the same, and have lost it.

Where the state is spread over the ranks and held several times (HSDP), each part has such a rank, and all of them stand at one step.

Source: docs/design/live_rollback.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from recovery.core.held import LiveState
from recovery.core.ids import Rank
from recovery.core.policy import rollback
from recovery.core.records import GenerationRecord

LIVE_MODE = "MS_ROLLBACK=live"
"""What a scheduler says in the event of its start, where it has this rule."""
NOT_LIVE = "no live rollback: "
"""Begins the reason that a rank, or a plan, gives for doing without."""
REASONS_NAMED = 4
"""Ranks that are named in a plan's reason; the event log has all."""


class LiveSource(msgspec.Struct, frozen=True):
    """A rank that gives what it has in its memory."""

    rank: Rank
    structure: str
    """As `LiveState.structure`; empty: it loads its checkpoint first, and gives that."""
    replicas: tuple[Rank, ...] = ()
    """The ranks that take it, itself among them; empty: all ranks."""

    @property
    def is_checkpoint(self) -> bool:
        """Is what it gives in its checkpoint, and not in its memory yet?"""
        return not self.structure


def choose(
    states: Mapping[Rank, LiveState],
    generations: Sequence[GenerationRecord],
    *,
    world_size: int,
    newer_than: int,
    refused: frozenset[int] = frozenset(),
) -> tuple[LiveSource, ...]:
    """Choose the one source that each rank takes its state from.

    Args:
        states: by rank, what is whole in its memory.
        generations: plans of this run: what belongs to a suffix that one of them rolled back is no candidate.
        world_size: how many ranks need a source.
        newer_than: step of the newest common checkpoint; 0: there is none.
        refused: steps whose state could not be taken, or turned out not to be the same on all ranks.

    Returns:
        One where every rank holds all; else one for each part of the state. They stand at the newest step at which every rank finds what it
        had, with itself or a replica; of several ranks that hold one part the lowest gives it. None: no such step is newer than the checkpoint.
    """
    of_lineage = {
        rank: state
        for rank, state in states.items()
        if rollback.in_lineage((state,), generations)
        and state.step not in refused
        and state.step > newer_than
    }
    for step in sorted({state.step for state in of_lineage.values()}, reverse=True):
        holders = {rank: state for rank, state in of_lineage.items() if state.step == step}
        sources = _sources(holders)
        # Each rank is in one group, no more and no less.
        if _takers(sources, world_size) == list(range(world_size)):
            return sources
    return ()


def _sources(holders: Mapping[Rank, LiveState]) -> tuple[LiveSource, ...]:
    """The lowest rank of each group of replicas."""
    lowest: dict[tuple[Rank, ...], Rank] = {}
    for rank in sorted(holders):
        lowest.setdefault(holders[rank].replicas, rank)
    return tuple(
        LiveSource(rank, holders[rank].structure, replicas)
        for replicas, rank in lowest.items()
        if not replicas or rank in replicas
    )


def _takers(sources: Sequence[LiveSource], world_size: int) -> list[int]:
    return sorted(rank for source in sources for rank in (source.replicas or range(world_size)))


def nobody_has(states: Mapping[Rank, LiveState], step: int, world_size: int) -> Rank | None:
    """The lowest rank whose part of a step is in no memory; None: each has one, though perhaps not one alone."""
    holders = {rank: state for rank, state in states.items() if state.step == step}
    found = set(_takers(_sources(holders), world_size))
    return next((Rank(rank) for rank in range(world_size) if rank not in found), None)


def given_by(rank: Rank, step: int, lost: Mapping[Rank, rollback.Unusable]) -> str:
    """Say that a rank gives what it has in its checkpoint, and whose files are the reason."""
    return f"rank {rank} holds step {step} in its checkpoint, and gives it to all: {rollback.whose(lost)}"


def held_by(sources: Sequence[LiveSource], step: int) -> str:
    """Say whose memories a step is in."""
    if not sources[0].replicas:
        return f"rank {sources[0].rank} holds step {step} in its memory, and gives it to all"
    named = [str(source.rank) for source in sources[:REASONS_NAMED]]
    more = len(sources) - len(named)
    who = f"ranks {', '.join(named)}{f' and {more} more' if more else ''}"
    return f"{who} hold step {step} in their memories, each a part of it, and give it to their replicas"


def why_not(reasons: Mapping[Rank, str]) -> str:
    """Why no state in memory can be gone on from, in one clause; `reasons`: by rank, what it has said of itself."""
    said = [f"rank {rank}: {reason}" for rank, reason in sorted(reasons.items()) if reason]
    if len(said) > REASONS_NAMED:
        said = [*said[:REASONS_NAMED], f"and {len(said) - REASONS_NAMED} more ranks"]
    return ", ".join(said) or "no rank that trained is left"
