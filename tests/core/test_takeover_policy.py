from __future__ import annotations

import itertools

import pytest

from recovery.core.ids import NodeId
from recovery.core.policy.takeover import (
    SLOTS,
    TAKES_RANK,
    Candidate,
    Match,
    Vacancy,
    Wanted,
    next_candidate,
    vacancy,
    violation,
)
from recovery.core.records import JobState, NodeState
from tests.core.desk import checkpoint


def test_every_slot_has_exactly_one_row() -> None:
    for holder, job, has_rank in itertools.product(NodeState, JobState, (True, False)):
        assert sum(row.matches(holder, job, has_rank=has_rank) for row in SLOTS) == 1, (holder, job, has_rank)


def test_every_answer_has_a_row() -> None:
    assert set(TAKES_RANK) == set(Match)


@pytest.mark.parametrize("job", JobState)
@pytest.mark.parametrize("holder", [NodeState.LIVE, NodeState.SUSPECT])
def test_slot_of_who_may_be_alive_is_never_given_away(holder: NodeState, job: JobState) -> None:
    for has_rank in (True, False):
        assert vacancy(holder, job, has_rank=has_rank) is Vacancy.NOT


@pytest.mark.parametrize(
    ("holder", "job", "has_rank", "expected"),
    [
        (NodeState.LOST, JobState.INTERRUPTED, True, Vacancy.OFFER),
        (NodeState.LEFT, JobState.INTERRUPTED, True, Vacancy.OFFER),
        (NodeState.LOST, JobState.FORMING, True, Vacancy.OFFER),
        (NodeState.LOST, JobState.FORMING, False, Vacancy.AT_ONCE),
        (NodeState.LEFT, JobState.FORMING, False, Vacancy.NOT),
        (NodeState.LOST, JobState.RUNNING, True, Vacancy.NOT),
        (NodeState.LOST, JobState.FINISHED, True, Vacancy.NOT),
    ],
)
def test_which_slots_are_given_away(
    holder: NodeState, job: JobState, has_rank: bool, expected: Vacancy
) -> None:
    assert vacancy(holder, job, has_rank=has_rank) is expected


def _ids(names: list[str]) -> list[NodeId]:
    return [NodeId(name) for name in names]


def test_standbys_of_the_lost_ones_host_are_asked_first_then_in_natural_order() -> None:
    standbys = [
        Candidate(NodeId("s10"), "b"),
        Candidate(NodeId("s2"), "b"),
        Candidate(NodeId("s11"), "a"),
        Candidate(NodeId("s9"), "a"),
    ]
    asked: list[str] = []
    while (
        chosen := next_candidate(Wanted("0", "a"), standbys, [NodeId(name) for name in asked])
    ) is not None:
        asked.append(chosen.node_id)
    assert asked == ["s9", "s11", "s2", "s10"]


def test_who_has_warmed_up_is_asked_first_then_who_comes_for_the_slot_and_never_who_comes_for_another() -> (
    None
):
    standbys = [
        Candidate(NodeId("s1"), "a", is_warm=False),
        Candidate(NodeId("0.2"), "b", is_warm=False, comes_for="0"),
        Candidate(NodeId("1.2"), "a", comes_for="1"),
        Candidate(NodeId("s2"), "b"),
    ]
    asked: list[NodeId] = []
    while (chosen := next_candidate(Wanted("0", "a"), standbys, asked)) is not None:
        asked.append(chosen.node_id)
    assert asked == ["s2", "0.2", "s1"]


def test_answer_must_hold_the_very_file_of_the_step_that_all_ranks_hold() -> None:
    needed = checkpoint(20, path="w1/20")
    assert violation(needed, [checkpoint(10), needed]) == ""
    assert "cannot read the rank's file of step 20; its newest is step 10" in violation(
        needed, [checkpoint(10)]
    )
    assert "its newest is none" in violation(needed, [])
    assert "step 20 is not the one" in violation(needed, [checkpoint(20, path="another/20")])


def test_where_no_step_is_common_any_standby_will_do() -> None:
    assert violation(None, []) == ""
    assert violation(None, [checkpoint(10)]) == ""
