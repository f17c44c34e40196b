"""The index holds what a plan may need, however long the job is."""

from __future__ import annotations

import pytest

from recovery.core.checkpoints import CheckpointIndex
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy.next_plan import End, Plan, next_plan
from recovery.core.policy.retention import INDEXED_STEPS
from recovery.core.records import CheckpointRecord, CheckpointState, GenerationRecord

RANKS = 3


def saved(step: int, *, generation: int = 1, epoch: int = 1) -> HeldCheckpoint:
    return HeldCheckpoint(
        run=RunId(1),
        generation=Generation(generation),
        step=step,
        epoch=epoch,
        step_in_epoch=step,
        path=f"/{step}",
        digest="ab" * 32,
        file_bytes=1,
    )


def began(generation: int, step: int) -> GenerationRecord:
    return GenerationRecord(
        run=RunId(1), generation=Generation(generation), step=step, epoch=1, step_in_epoch=step, because=""
    )


def _files(index: CheckpointIndex) -> tuple[HeldCheckpoint, ...]:
    """Which file each rank goes back to."""
    decided = next_plan(index.facts(allow_restart_from_zero=False))
    assert isinstance(decided, Plan)
    return decided.files


def test_what_goes_on_from_memory_commits_nothing_and_forgets_what_is_newer() -> None:
    index = CheckpointIndex(RANKS)
    for step, ranks in ((10, 3), (20, 3), (30, 2), (40, 1)):
        for rank in range(ranks):
            index.add(Rank(rank), saved(step))
    index.roll_back(35, is_stored=False)
    assert (index.committed_step, index.durable_step) == (20, 20)
    assert [one.step for one in index.held_by(Rank(0))] == [10, 20, 30]
    # The rank that lacked it may still write it: the step is of the history that goes on.
    assert index.add(Rank(2), saved(30, generation=2))
    assert index.committed_step == 30
    alone = CheckpointIndex(RANKS)
    alone.roll_back(7, is_stored=False)
    assert (alone.committed_step, alone.durable_step, alone.given_up(0)) == (0, 0, {})


class Long:
    """A job that saves every ten steps, and the rows that its scheduler would have written."""

    def __init__(self) -> None:
        self.index = CheckpointIndex(RANKS)
        self.rows: dict[tuple[int, int], CheckpointRecord] = {}

    def save(self, step: int, *, ranks: int = RANKS) -> None:
        for rank in range(ranks):
            if self.index.add(Rank(rank), saved(step)):
                for row in (*self.index.committed_records(step), *self.index.retire()):
                    self.rows[row.step, row.rank] = row

    def states(self) -> dict[int, set[CheckpointState]]:
        """By step."""
        found: dict[int, set[CheckpointState]] = {}
        for row in self.rows.values():
            found.setdefault(row.step, set()).add(row.state)
        return found


@pytest.fixture
def long() -> Long:
    job = Long()
    for step in range(10, 10 * (INDEXED_STEPS + 5), 10):
        job.save(step)
    return job


def test_what_is_older_than_the_newest_common_steps_is_retired_on_every_rank(long: Long) -> None:
    last = 10 * (INDEXED_STEPS + 4)
    states = long.states()

    assert [step for step, found in states.items() if found == {CheckpointState.RETIRED}] == [10, 20, 30, 40]
    assert {record.step for record in long.index.held_records()} == set(range(50, last + 1, 10))
    assert long.index.committed_step == last
    assert _files(long.index) == (saved(last),) * RANKS


def test_ranks_at_different_places_have_no_step_in_common() -> None:
    index = CheckpointIndex(2)
    for step, epoch in ((10, 1), (20, 2)):
        assert not index.add(Rank(0), saved(step))
        assert index.positions_differ(step) == ""
        assert index.add(Rank(1), saved(step, epoch=epoch)) == (epoch == 1)

    assert index.positions_differ(20) == "rank 0 at step 20 of epoch 1, rank 1 at step 20 of epoch 2"
    assert (index.committed_step, index.durable_step) == (10, 10)
    assert _files(index) == (saved(10),) * 2
    index.replace(Rank(1), [saved(20, epoch=2)])
    assert isinstance(next_plan(index.facts(allow_restart_from_zero=False)), End)


def test_the_target_is_the_newest_of_several_common_steps() -> None:
    index = CheckpointIndex(2)
    index.replace(Rank(0), [saved(step) for step in (10, 20, 30)])
    index.replace(Rank(1), [saved(step) for step in (10, 20, 40)])

    assert _files(index) == (saved(20),) * 2


def test_nothing_is_retired_for_a_step_that_is_not_common(long: Long) -> None:
    before = {record.step for record in long.index.held_records()}

    long.save(1_000, ranks=RANKS - 1)

    assert {record.step for record in long.index.held_records()} == before | {1_000}
    assert long.index.committed_step == max(before)


def test_a_late_save_of_an_older_step_does_not_take_the_commit_back(long: Long) -> None:
    last = long.index.committed_step

    assert not long.index.add(Rank(0), saved(5))
    assert not long.index.add(Rank(1), saved(5))
    assert not long.index.add(Rank(2), saved(5))
    assert long.index.committed_step == last


def test_a_step_that_is_saved_once_more_stays_committed(long: Long) -> None:
    last, again = long.index.committed_step, saved(long.index.committed_step, generation=2)

    assert not long.index.add(Rank(1), again)

    assert long.index.record_of(Rank(1), again).state is CheckpointState.COMMITTED
    newer = saved(last + 10)
    long.index.add(Rank(1), newer)
    assert long.index.record_of(Rank(1), newer).state is CheckpointState.PUBLISHED


def test_a_step_that_one_rank_has_lost_stays_committed_in_the_rows_of_the_others(long: Long) -> None:
    last, again = long.index.committed_step, saved(long.index.committed_step, generation=2)
    long.index.replace(Rank(0), ())
    long.index.add(Rank(1), again)

    assert long.index.record_of(Rank(1), again).state is CheckpointState.COMMITTED
    assert last in long.index.given_up(0)


def test_a_rank_that_still_holds_what_was_retired_may_say_so(long: Long) -> None:
    for rank in range(RANKS):
        long.index.replace(Rank(rank), [saved(20)])

    target = next_plan(long.index.facts(allow_restart_from_zero=False))
    assert isinstance(target, Plan)
    assert target.step == 20


def test_a_restarted_scheduler_begins_with_the_index(long: Long) -> None:
    again = CheckpointIndex(RANKS)
    again.load(long.rows.values(), [began(1, 0)])

    assert again.held_records() == long.index.held_records()
    assert again.committed_step == long.index.committed_step


def test_the_index_is_loaded_by_lineage() -> None:
    """Generation 2 went back to 20, generation 3 to 30: what 1 wrote above 20 and 2 above 30 was done again."""
    rows = [
        CheckpointRecord(
            run=RunId(1),
            step=step,
            rank=Rank(0),
            generation=Generation(generation),
            epoch=1,
            step_in_epoch=step,
            path=f"/{step}",
            digest="ab" * 32,
            file_bytes=1,
            state=CheckpointState.PUBLISHED,
        )
        for step, generation in ((10, 1), (20, 1), (25, 1), (30, 2), (35, 2), (40, 3))
    ]
    index = CheckpointIndex(1)
    index.load(rows, [began(3, 30), began(1, 0), began(2, 20)])

    assert [record.step for record in index.held_records()] == [40, 30, 20, 10]
