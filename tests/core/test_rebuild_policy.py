"""What a job was, put together from what its workers know."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.policy import rebuild
from recovery.core.policy.next_plan import End, next_plan
from recovery.core.policy.ranks import keep
from recovery.core.policy.rebuild import Rebuilt, Unclear
from recovery.core.policy.rollback import in_lineage
from recovery.core.records import CheckpointState
from recovery.core.rules import Rules
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX
from tests.core.desk import Desk, checkpoint
from tests.core.pasts import OLD, began, built, past

# --- what the workers know together ------------------------------------------------------------------------------------


def _steps(found: Rebuilt, known: m.JobHistory) -> list[int]:
    """What of a rank's files can be gone back to."""
    return [held.step for held in in_lineage(known.held, found.generations)]


def test_numbers_go_on_from_the_highest_and_nothing_is_taken_for_committed_where_a_step_is_common() -> None:
    found = built(past(0, 10, 20, generation=4), past(1, 10, 20, 30, generation=4, began=()))

    assert (found.job, found.run, found.generation, found.scheduler_incarnation) == (OLD, 1, 4, 5)
    assert found.ranks == {"w0": 0, "w1": 1}
    assert (found.checkpoints, found.unsure) == ((), ())


def test_a_file_of_a_suffix_that_was_rolled_back_is_left_out() -> None:
    one = past(0, 10, 20, generation=1, began=(began(1, 0), began(2, 10)))
    other = past(1, 10, 20, generation=1)

    found = built(one, other)

    assert (_steps(found, one), _steps(found, other)) == ([10], [10])
    assert [(one.generation, one.step) for one in found.generations] == [(1, 0), (2, 10)]
    assert found.generation == 2


def test_of_two_reports_on_where_a_generation_began_the_lower_counts() -> None:
    found = built(past(0, began=(began(1, 5),)), past(1, began=(began(1, 3),)))
    assert [one.step for one in found.generations] == [3]


def test_where_a_forgotten_generation_began_is_taken_from_its_lowest_file() -> None:
    newer = (checkpoint(20, generation=2, path="0/20"), checkpoint(10, generation=1, path="0/10"))
    other = past(1, 10, 20, generation=1, began=(began(1, 0),))
    found = built(past(0, held=newer, generation=3, began=(began(1, 0),)), other)

    assert [(one.generation, one.step) for one in found.generations] == [(1, 0), (2, 19)]
    assert _steps(found, other) == [10], "step 20 of generation 1 beside step 20 of generation 2"


@pytest.mark.parametrize("lost_files", [False, True])
def test_who_has_saved_keeps_the_plan_from_step_0_even_without_files(lost_files: bool) -> None:
    one = past(0, 10)
    found = built(msgspec.structs.replace(one, held=()) if lost_files else one, past(1))

    assert [(one.rank, one.step, one.state, one.reason) for one in found.checkpoints] == [
        (0, 10, CheckpointState.COMMITTED, rebuild.NOT_KNOWN)
    ]
    assert "taken for so" in found.report


def test_a_generation_that_began_above_0_proves_a_committed_step() -> None:
    """Also where nobody has noted a save."""
    found = built(past(0, began=(began(1, 40),)), past(1, began=()))
    assert found.checkpoints == ()
    desk = Desk(Rules(worker_count=2))
    desk.machine.state.checkpoints.load((), found.generations)
    decided = next_plan(desk.machine.state.checkpoints.facts(allow_restart_from_zero=False))
    assert isinstance(decided, End)


def test_a_step_that_is_common_in_memory_does_not_hide_what_was_saved_on_disks() -> None:
    in_memory = checkpoint(12, path=f"/dev/shm/{MEMORY_DIRECTORY_PREFIX}1000-abc/run-1-rank-0/12")
    found = built(past(0, held=(in_memory,), saved_step=10), past(1, held=(in_memory,)))

    # Then the hosts restart.
    desk = Desk(Rules(worker_count=2))
    desk.machine.state.checkpoints.load(found.checkpoints, found.generations)
    decided = next_plan(desk.machine.state.checkpoints.facts(allow_restart_from_zero=False))
    assert isinstance(decided, End), "rank 0 has saved step 10, and nobody finds it any more"


def test_an_older_run_counts_only_for_the_numbers() -> None:
    found = built(past(0, 10), past(1, 90, run=RunId(0), scheduler_incarnation=Incarnation(9)))

    assert found.ranks == {"w0": 0}
    assert found.scheduler_incarnation == 9
    assert found.reports.keys() == {"w0", "w1"}, "the number of each of them is given again to nobody"
    assert {file.rank for file in found.checkpoints} == {0}
    assert found.unsure == ("nobody knows who was rank 1",)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (past(0), past(1, job="x"), "2 different jobs"),
        (past(0), past(1, worker_count=3), "b was rank 1 of 3 workers, and a knows 2 workers"),
        (past(0), past(7), "b was rank 7 of 2 workers"),
    ],
)
def test_workers_that_contradict_each_other_are_named(
    one: m.JobHistory, other: m.JobHistory, why: str
) -> None:
    found = rebuild.rebuild({NodeId("a"): one, NodeId("b"): other})
    assert isinstance(found, Unclear)
    assert why in found.reason


def test_what_was_taken_from_where_is_reported() -> None:
    known = {NodeId("w0"): past(0, 10, 20), NodeId("w1"): past(1)}
    found = rebuild.rebuild(known)
    assert isinstance(found, Rebuilt)
    report = found.report
    assert report.startswith(
        "w0: rank 0, generation 1, holds steps 10, 20; w1: rank 1, generation 1, holds nothing"
    )
    assert "; not known: " in report
    known = {NodeId("w0"): past(0, 10), NodeId("w1"): past(1, 10)}
    found = rebuild.rebuild(known)
    assert isinstance(found, Rebuilt)
    assert "not known" not in found.report


def test_ranks_that_are_kept_leave_the_rest_to_the_others() -> None:
    assigned = {NodeId("a"): Rank(0), NodeId("b"): Rank(1), NodeId("c"): Rank(2)}
    assert keep(assigned, {NodeId("b"): Rank(0)}) == {"a": 1, "b": 0, "c": 2}


def test_of_one_rank_the_newest_holder_counts_and_who_was_replaced_is_named() -> None:
    known = {
        NodeId("w0"): past(0, 10, generation=5),
        NodeId("w1"): past(1, 10, 99, generation=3),
        NodeId("s0"): past(1, 10, 20, generation=5),
    }
    found = rebuild.rebuild(known)
    assert isinstance(found, Rebuilt)
    assert found.ranks == {"w0": 0, "s0": 1}
    assert "w1: rank 1, generation 3, holds steps 10, 99" in found.report
    assert (found.unsure, found.checkpoints) == ((), ()), "step 10 is common, and 99 is of who was replaced"


# --- who has said it and is gone ----------------------------------------------------------------------------------------

HERE = {NodeId("w0"): past(0), NodeId("w1"): past(1)}


def said(known: m.JobHistory) -> Rebuilt | Unclear:
    """Both ranks are here and have saved nothing; a standby has said this and is gone."""
    return rebuild.rebuild({**HERE, NodeId("s0"): known}, HERE.keys())


def test_numbers_of_who_is_gone_stay_given() -> None:
    found = said(past(1, generation=5, scheduler_incarnation=Incarnation(9), began=(began(5, 0),)))
    assert isinstance(found, Rebuilt)
    assert (found.generation, found.scheduler_incarnation) == (5, 9)
    assert found.ranks == {"w0": 0, "w1": 1}, "it holds no rank"
    assert 5 in {one.generation for one in found.generations}
    assert found.unsure[1] == "rank 1 is known only up to generation 1 of 5", "it may come back"


@pytest.mark.parametrize("lost_files", [False, True])
def test_who_has_saved_and_is_gone_keeps_the_plan_from_step_0(lost_files: bool) -> None:
    known = past(1, 10)
    found = said(msgspec.structs.replace(known, held=()) if lost_files else known)
    assert isinstance(found, Rebuilt)
    assert [(one.rank, one.step, one.path, one.state) for one in found.checkpoints] == [
        (1, 10, "", CheckpointState.COMMITTED)
    ]


@pytest.mark.parametrize(
    ("newest", "first"), [(0, 1_000), (5, 1_000), (900, 1_000), (901, 2_000), (1_000, 2_000)]
)
def test_numbers_that_who_did_not_come_may_have_been_given_stay_free(newest: int, first: int) -> None:
    assert rebuild.first_number_after(Generation(newest), 0) == first
    assert rebuild.first_number_after(Generation(newest), 7) == first + 7_000


def test_two_stores_that_know_the_same_of_a_job_go_on_at_different_numbers() -> None:
    """Neither meets those whom the other has given a plan: else both worlds' files of a step would be taken for one history."""
    skipped = {rebuild.thousands_skipped(job) for job in ("4f0c", "4f0d", "4f0e")}
    assert len(skipped) == 3
    assert all(0 <= one < rebuild.STORES_TOLD_APART for one in skipped)


def test_run_that_only_who_is_gone_knew_goes_on() -> None:
    found = said(past(1, generation=2, run=RunId(7)))
    assert isinstance(found, Rebuilt)
    assert (found.run, found.generation, found.ranks) == (7, 2, {})


def test_another_job_of_who_is_gone_counts_nowhere() -> None:
    assert said(past(1, 10, generation=9, job="x")) == rebuild.rebuild(HERE)


@pytest.mark.parametrize(
    ("known", "why"), [(past(0, worker_count=3, generation=2), "s0 knows 3 workers"), (past(7), "rank 7")]
)
def test_who_is_gone_and_contradicts_is_named(known: m.JobHistory, why: str) -> None:
    found = said(known)
    assert isinstance(found, Unclear)
    assert why in found.reason
    assert "s0" in found.reason
