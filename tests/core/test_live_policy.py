"""Whose memory a plan goes to: the table, without a scheduler."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core.held import LiveState
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.policy import live
from recovery.core.policy.live import LiveSource
from recovery.core.records import GenerationRecord
from tests.core.survivors import in_memory


def _states(**steps: int) -> dict[Rank, LiveState]:
    """By keyword `r<rank>`: the step whose state is whole in its memory."""
    return {Rank(int(name[1:])): in_memory(step) for name, step in steps.items()}


def _began(*steps: int) -> list[GenerationRecord]:
    """Generations 1, 2, ... of run 1, and the step that each began at."""
    return [
        GenerationRecord(
            run=RunId(1), generation=Generation(number), step=step, epoch=0, step_in_epoch=0, because=""
        )
        for number, step in enumerate(steps, start=1)
    ]


@pytest.mark.parametrize(
    ("states", "newer_than", "refused", "rank"),
    [
        ({}, 0, (), None),
        (_states(r1=7), 0, (), 1),
        (_states(r0=7, r1=8, r2=7), 0, (), 1),
        (_states(r2=8, r1=8, r0=7), 0, (), 1),
        (_states(r0=8, r1=8, r2=8), 7, (), 0),
        (_states(r0=8, r1=8), 8, (), None),
        (_states(r0=8, r1=8), 9, (), None),
        (_states(r0=8, r1=7), 6, (8,), 1),
        (_states(r0=8, r1=7), 7, (8,), None),
        (_states(r0=8, r1=7), 0, (7, 8), None),
    ],
)
def test_the_newest_state_wins_and_of_several_the_lowest_rank_gives_it(
    states: dict[Rank, LiveState], newer_than: int, refused: tuple[int, ...], rank: int | None
) -> None:
    chosen = live.choose(states, _began(0), world_size=3, newer_than=newer_than, refused=frozenset(refused))
    assert chosen == (() if rank is None else _from(Rank(rank), states))


def test_a_state_of_a_suffix_that_was_rolled_back_is_no_candidate() -> None:
    states = {Rank(0): in_memory(9, generation=1), Rank(1): in_memory(6, generation=2)}
    chosen = live.choose(states, _began(0, 5), world_size=2, newer_than=0)
    assert chosen == _from(Rank(1), states)
    # The plan of generation 2 went to that very step: it leads to where training is.
    assert live.choose({Rank(0): in_memory(5)}, _began(0, 5), world_size=2, newer_than=0)
    assert not live.choose({Rank(0): in_memory(6)}, _began(0, 5), world_size=2, newer_than=0)


def _shards(**steps: int) -> dict[Rank, LiveState]:
    """As `_states`, of four ranks on a mesh of two replicas by two shards."""
    return {
        rank: msgspec.structs.replace(
            state, replicas=(Rank(rank % 2), Rank(rank % 2 + 2)), structure=f"shard {rank % 2}"
        )
        for rank, state in _states(**steps).items()
    }


def _of_nobody(step: int) -> LiveState:
    """Its replicas are no ranks of this job."""
    return msgspec.structs.replace(in_memory(step), replicas=(Rank(1), Rank(5)))


@pytest.mark.parametrize(
    ("states", "newer_than", "refused", "step", "givers"),
    [
        (_shards(r0=8, r1=8, r2=8), 0, (), 8, (0, 1)),
        (_shards(r1=8, r2=8, r3=8), 0, (), 8, (1, 2)),
        (_shards(r2=8, r3=8), 0, (), 8, (2, 3)),
        # Nobody has the second shard of the newest step.
        (_shards(r0=9, r1=8, r2=8), 0, (), 8, (1, 2)),
        (_shards(r0=9, r1=8, r2=9), 0, (), None, ()),
        (_shards(r0=9, r2=9), 0, (), None, ()),
        (_shards(r0=9, r1=9, r2=8, r3=8), 0, (9,), 8, (2, 3)),
        (_shards(r0=9, r1=9, r2=8, r3=8), 8, (9,), None, ()),
        # Ranks that do not say the same of who has what.
        ({**_shards(r0=8, r1=8), **_states(r2=8)}, 0, (), None, ()),
        ({**_shards(r0=8), Rank(1): _of_nobody(8)}, 0, (), None, ()),
    ],
)
def test_each_shard_has_its_own_source_and_all_stand_at_one_step(
    states: dict[Rank, LiveState],
    newer_than: int,
    refused: tuple[int, ...],
    step: int | None,
    givers: tuple[int, ...],
) -> None:
    chosen = live.choose(states, _began(0), world_size=4, newer_than=newer_than, refused=frozenset(refused))
    assert tuple(source.rank for source in chosen) == givers
    assert {states[source.rank].step for source in chosen} == ({step} if givers else set())
    for source in chosen:
        assert source.structure == f"shard {source.rank % 2}"
        assert source.replicas == (source.rank % 2, source.rank % 2 + 2)
        assert source.rank in source.replicas


def test_a_rank_that_is_not_among_those_it_names_gives_nothing() -> None:
    odd = {
        Rank(0): msgspec.structs.replace(in_memory(8), replicas=(Rank(1), Rank(2))),
        Rank(2): msgspec.structs.replace(in_memory(8), replicas=(Rank(0),)),
    }
    assert not live.choose(odd, _began(0), world_size=3, newer_than=0)


def test_the_first_rank_whose_part_nobody_has_is_named() -> None:
    assert live.nobody_has(_shards(r0=9, r1=8, r2=9), 9, 4) == 1
    assert live.nobody_has(_shards(r0=9, r1=8, r2=9), 8, 4) == 0
    assert live.nobody_has(_shards(r2=9, r3=9), 9, 4) is None
    assert live.nobody_has(_states(r0=9), 9, 4) is None


def _from(rank: Rank, states: dict[Rank, LiveState]) -> tuple[LiveSource, ...]:
    return (LiveSource(rank, states[rank].structure),)


def test_the_reason_names_four_ranks_and_counts_the_others() -> None:
    torn = {Rank(rank): "torn" for rank in (5, 1, 0, 3, 2)}
    assert live.why_not(torn) == "rank 0: torn, rank 1: torn, rank 2: torn, rank 3: torn, and 1 more ranks"
    assert live.why_not({Rank(1): "torn", Rank(0): ""}) == "rank 1: torn"
    assert live.why_not({Rank(0): ""}) == live.why_not({}) == "no rank that trained is left"
