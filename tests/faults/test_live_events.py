"""Some of the events at which `python -m tests.faults.live_events` kills a rank: one of each sort."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.made_once import made_once
from tests.faults.live_events import SPREAD, EventCluster, cluster_of, disturb, undisturbed_of
from tests.faults.live_events_cases import Case
from tests.faults.live_strikes import HOLD, Strike

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

IN_A_STEP = Case(
    (
        Strike(1, "bucket 1", 3),
        Strike(0, "mirror begins", 10, follows=True),
        Strike(2, "optimizer 1 steps", 17, follows=True),
        Strike(0, "boundary begins", 24, follows=True),
        Strike(1, "boundary ends", 31, follows=True),
        Strike(0, "save ends", follows=True),
    )
)
IN_A_RECOVERY = Case(
    (
        Strike(2, "backward begins", 3),
        Strike(0, "piece 3", follows=True),
        Strike(2, "backward begins", 16, follows=True),
        Strike(1, "agreement begins", follows=True),
        Strike(2, "backward begins", 29, follows=True),
        Strike(0, "forward begins", follows=True),
    )
)
IN_ITS_FIRST_STEP = Case(
    (
        Strike(2, "backward begins", 10),
        Strike(0, "optimizer 0 begins", follows=True),
        Strike(1, "mirror begins", follows=True),
    )
)
"""Which buffers change is known there from the rank that has given its memory."""
ALL_TORN = Case((Strike(0, "optimizer 0 begins", 1, behind="optimizer 0 steps"),))
"""In the first step of a job all vote on buffers at the boundary: there nobody is whole."""
OF_PARTS = Case(
    (
        Strike(1, "bucket 1", 3),
        Strike(3, "backward begins", 16, follows=True),
        Strike(1, "piece 3", follows=True),
        Strike(2, "boundary ends", 29, follows=True),
    )
)
"""Four ranks hold two parts, each of them twice."""
A_STEP_APART = Case((Strike(0, "boundary begins", 10, HOLD), Strike(1, "forward begins", 11)))


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> EventCluster:
    place = made_once(tmp_path_factory, "undisturbed-live-events", _undisturbed)
    return EventCluster(place / "job", workers=3)


def _undisturbed(directory: Path) -> None:
    undisturbed_of(directory / "job", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [IN_A_STEP, IN_A_RECOVERY, IN_ITS_FIRST_STEP, A_STEP_APART],
    ids=["step", "recovery", "first-step", "apart"],
)
def test_a_kill_costs_no_step_where_a_survivor_is_whole(
    tmp_path: Path, undisturbed: EventCluster, case: Case
) -> None:
    ended = disturb(undisturbed, tmp_path / "job", case)
    assert not ended.fault, ended.fault
    assert [plan.lost for plan in ended.plans] == [0] * len(ended.plans), ended.plans


@pytest.mark.slow
def test_a_kill_costs_no_step_where_each_part_has_a_survivor_that_is_whole(tmp_path: Path) -> None:
    ended = disturb(
        undisturbed_of(tmp_path / "undisturbed", 4, **SPREAD), tmp_path / "job", OF_PARTS, **SPREAD
    )
    assert not ended.fault, ended.fault
    # A dead rank may have owed gradients to some when others had all of theirs.
    losing = [plan for plan in ended.plans if plan.lost and "nobody has that of rank" not in plan.reason]
    assert not losing, losing
    assert any("in their memories" in plan.reason for plan in ended.plans)


def test_where_all_survivors_are_torn_the_plan_says_so(tmp_path: Path, undisturbed: EventCluster) -> None:
    ended = disturb(undisturbed, tmp_path / "job", ALL_TORN)
    assert not ended.fault, ended.fault
    assert [plan.step for plan in ended.plans] == [0]
    assert "had begun its step" in ended.plans[-1].reason


def test_a_job_to_which_nothing_happens_makes_one_plan(undisturbed: EventCluster) -> None:
    with cluster_of(undisturbed.directory.parent / "other", 3, JOB_KEEP="1") as cluster:
        cluster.run()
        assert cluster.digests() == undisturbed.digests()
