"""The table of a barrier, walked whole."""

from __future__ import annotations

import itertools

import pytest

from recovery.core.ids import Generation
from recovery.core.scheduler.barrier import NEXT_STATES, Barrier, BarrierState

WAYS = {
    BarrierState.ASKING: (),
    BarrierState.AGREEING: (BarrierState.AGREEING,),
    BarrierState.SAVING: (BarrierState.AGREEING, BarrierState.SAVING),
    BarrierState.HANDING_OVER: (BarrierState.AGREEING, BarrierState.SAVING, BarrierState.HANDING_OVER),
    BarrierState.ENDED: (BarrierState.ENDED,),
}
"""By state: how a barrier comes there."""


def in_state(state: BarrierState) -> Barrier:
    barrier = Barrier(1, Generation(1), "SIGTERM")
    for each in WAYS[state]:
        barrier.move(each)
    assert barrier.state is state
    return barrier


@pytest.mark.parametrize(("state", "to"), list(itertools.product(BarrierState, BarrierState)))
def test_a_barrier_moves_as_the_table_says_or_not_at_all(state: BarrierState, to: BarrierState) -> None:
    barrier = in_state(state)
    if to in NEXT_STATES[state]:
        barrier.move(to)
        assert barrier.state is to
    else:
        with pytest.raises(AssertionError, match=to.value):
            barrier.move(to)
        assert barrier.state is state


def test_a_barrier_can_be_given_up_until_it_has_ended_and_ends_only_once() -> None:
    assert set(NEXT_STATES) == set(BarrierState) == set(WAYS)
    for state, ends in NEXT_STATES.items():
        assert (
            (BarrierState.ENDED in ends) == (state is not BarrierState.ENDED) == in_state(state).is_under_way
        )


def test_it_can_be_undone_before_the_node_has_left_and_not_later() -> None:
    undone = {state for state in BarrierState if in_state(state).is_open}
    assert undone == {BarrierState.ASKING, BarrierState.AGREEING, BarrierState.SAVING}
