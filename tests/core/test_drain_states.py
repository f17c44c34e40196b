"""The table of a planned departure, walked whole."""

from __future__ import annotations

import itertools

import pytest

from recovery.core.ids import Generation
from recovery.core.scheduler.drain_states import DRAIN_MOVES, Drain, DrainFact, DrainState

WAYS = {
    DrainState.ASKING: (),
    DrainState.AGREEING: (DrainFact.POSITIONS_KNOWN,),
    DrainState.SAVING: (DrainFact.POSITIONS_KNOWN, DrainFact.ALL_STOP),
    DrainState.HANDING_OVER: (DrainFact.POSITIONS_KNOWN, DrainFact.ALL_STOP, DrainFact.COMMITTED),
    DrainState.ENDED: (DrainFact.GIVEN_UP,),
}
"""By state: how a drain comes there."""


def in_state(state: DrainState) -> Drain:
    drain = Drain(1, Generation(1), "SIGTERM")
    for fact in WAYS[state]:
        drain.move(fact)
    assert drain.state is state
    return drain


@pytest.mark.parametrize(("state", "fact"), list(itertools.product(DrainState, DrainFact)))
def test_every_fact_moves_a_drain_as_the_table_says_or_cannot_happen(
    state: DrainState, fact: DrainFact
) -> None:
    drain = in_state(state)
    expected = DRAIN_MOVES[state].get(fact)
    if expected is None:
        with pytest.raises(AssertionError, match=fact.value):
            drain.move(fact)
        assert drain.state is state
    else:
        drain.move(fact)
        assert drain.state is expected


def test_every_state_has_its_moves_and_every_fact_its_place() -> None:
    assert set(DRAIN_MOVES) == set(DrainState) == set(WAYS)
    assert {fact for moves in DRAIN_MOVES.values() for fact in moves} == set(DrainFact)


def test_a_drain_can_be_given_up_until_it_has_ended_and_ends_only_once() -> None:
    for state, moves in DRAIN_MOVES.items():
        assert (moves.get(DrainFact.GIVEN_UP) is DrainState.ENDED) == (state is not DrainState.ENDED)


def test_it_can_be_undone_before_the_node_has_left_and_not_later() -> None:
    undone = {state for state in DrainState if in_state(state).is_open}
    assert undone == {DrainState.ASKING, DrainState.AGREEING, DrainState.SAVING}
