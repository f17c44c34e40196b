"""Live rollback from a checkpoint: ranks have lost their files of a committed step, and one that has its own gives it to all."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, Rank
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, LiveSourceRecord
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.survivors import could_not, follow, in_memory, lose, ready_with, reasons, took

LOST = "rank 0 holds step 20 in its checkpoint, and gives it to all: rank 2: missing"


def _desk(*, live: bool = True) -> Desk:
    return Desk(Rules(worker_count=3, rejoin_window_ms=0, live_rollback=live))


def _saved(desk: Desk) -> tuple[Worker, Worker, Worker]:
    """Three ranks that held steps 10 and 20, and have all died."""
    workers = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for step in (10, 20):
        for worker in workers:
            worker.save(step)
    first, second, third = (lose(desk, worker) for worker in workers)
    return first, second, third


def _files(worker: Worker, *steps: int) -> tuple[m.HeldCheckpoint, ...]:
    return tuple(checkpoint(step, path=f"{worker.node_id}/{step}") for step in steps)


def _third_lost_step_20(desk: Desk) -> tuple[Worker, Worker, Worker]:
    first, second, third = _saved(desk)
    ready_with(first, None, *_files(first, 10, 20))
    ready_with(second, None, *_files(second, 10, 20))
    ready_with(third, None, *_files(third, 10))
    return first, second, third


def _bad(worker: Worker) -> None:
    """The file that it is to load and give does not verify."""
    plan = worker.last(m.Rollback)
    assert plan.path
    worker.send(
        m.CheckpointInvalid(
            request_id=worker.request(),
            generation=plan.generation,
            step=plan.step,
            path=plan.path,
            reason="digest",
        )
    )


def test_one_rank_gives_its_checkpoint_where_another_has_lost_its_own() -> None:
    desk = _desk()
    first, second, third = workers = _third_lost_step_20(desk)
    plan = first.last(m.Rollback)
    for plan in (worker.last(m.Rollback) for worker in workers):
        assert (plan.step, plan.epoch, plan.step_in_epoch) == (20, 2, 10)
        assert (plan.live_rank, plan.live_structure, plan.live_replicas) == (0, "", ())
        assert (plan.committed_step, plan.durable_step) == (10, None)
    assert [worker.last(m.Rollback).path for worker in workers] == ["worker_0/20", "", ""]
    assert first.last(m.Rollback).digest == _files(first, 20)[0].digest
    assert reasons(desk)[-1] == LOST
    row = LiveSourceRecord(run=plan.run, generation=plan.generation, rank=Rank(0), structure="")
    assert desk.row(LiveSourceRecord) == [row]
    # As from memory: nobody begins before all have said the same.
    follow(workers)
    assert took(first) == took(second) == []
    assert took(third) == [m.StateAgreed(generation=plan.generation)]
    for worker in workers:
        worker.save(30)
    assert third.last(m.Committed).step == 30


def test_each_rank_has_its_own_where_that_is_not_asked_for() -> None:
    desk = _desk(live=False)
    first, _, _ = _third_lost_step_20(desk)
    assert (first.last(m.Rollback).step, first.last(m.Rollback).live_rank) == (10, None)


def test_a_restarted_scheduler_sends_the_same_plan() -> None:
    desk = _desk()
    first, second, third = workers = _third_lost_step_20(desk)
    before = [worker.last(m.Rollback) for worker in workers]
    desk.restart()
    for worker in (first, second, third):
        worker.generation = Generation(1)
        assert isinstance(worker.register(), m.Admitted)
    again = [worker.last(m.Rollback) for worker in workers]
    assert [(one.step, one.live_rank, one.path, one.digest) for one in again] == [
        (one.step, one.live_rank, one.path, one.digest) for one in before
    ]


def test_the_next_rank_gives_it_where_the_first_ones_file_is_bad() -> None:
    desk = _desk()
    first, second, third = _third_lost_step_20(desk)
    follow((first, second, third))
    _bad(first)
    # Its answer was lost.
    _bad(first)
    row = next(one for one in desk.row(CheckpointRecord) if (one.rank, one.step) == (0, 20))
    assert row.state is CheckpointState.INVALID
    ready_with(first, None, *_files(first, 10))
    ready_with(second, None, *_files(second, 10, 20))
    ready_with(third, None, *_files(third, 10))
    plan = second.last(m.Rollback)
    assert (plan.step, plan.live_rank, plan.path) == (20, 1, "worker_1/20")
    assert reasons(desk)[-1].endswith("gives it to all: rank 0: digest, rank 2: missing")


def test_what_cannot_be_given_is_gone_back_behind() -> None:
    """A state that is spread over the ranks, for one: only the source finds that out."""
    desk = _desk()
    first, second, third = _third_lost_step_20(desk)
    follow((first, second, third))
    could_not(first, "it is spread over the ranks")
    assert reasons(desk, EventKind.CHECKPOINT_INVALID) == ["it is spread over the ranks"]
    ready_with(first, None, *_files(first, 10, 20))
    ready_with(second, None, *_files(second, 10, 20))
    ready_with(third, None, *_files(third, 10))
    plan = first.last(m.Rollback)
    assert (plan.step, plan.live_rank, plan.path) == (10, None, "worker_0/10")
    assert "step 20 was committed and is not usable: rank 2: missing" in reasons(desk)[-1]


@pytest.mark.parametrize(("step", "source", "path"), [(19, 0, "worker_0/20"), (20, 1, ""), (25, 1, "")])
def test_a_survivors_memory_goes_first_where_it_is_not_older(step: int, source: int, path: str) -> None:
    desk = _desk()
    workers = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for saved in (10, 20):
        for worker in workers:
            worker.save(saved)
    first, second, third = workers
    third = lose(desk, third)
    ready_with(first, None, *_files(first, 10, 20), not_live="torn")
    ready_with(second, in_memory(step), *_files(second, 10, 20))
    ready_with(third, None, *_files(third, 10))
    plan = first.last(m.Rollback)
    assert (plan.step, plan.live_rank, plan.path) == (max(step, 20), source, path)


def test_a_folder_that_a_framework_wrote_is_not_given() -> None:
    desk = _desk()
    first, second, third = _saved(desk)
    folder = checkpoint(20, path="worker_0/20/")
    ready_with(first, None, *_files(first, 10), folder)
    ready_with(second, None, *_files(second, 10))
    ready_with(third, None, *_files(third, 10))
    assert (first.last(m.Rollback).step, first.last(m.Rollback).live_rank) == (10, None)


def test_a_job_goes_on_where_no_step_is_held_by_all() -> None:
    desk = _desk()
    first, second, third = _saved(desk)
    ready_with(first, None)
    ready_with(second, None, *_files(second, 10, 20))
    ready_with(third, None)
    plan = third.last(m.Rollback)
    assert (plan.step, plan.live_rank, plan.path) == (20, 1, "")


def test_a_newer_step_that_nobody_holds_is_named() -> None:
    desk = _desk()
    first, second, third = _saved(desk)
    ready_with(first, None, *_files(first, 10))
    ready_with(second, None)
    ready_with(third, None)
    assert (first.last(m.Rollback).step, first.last(m.Rollback).live_rank) == (10, 0)
    assert reasons(desk)[-1].startswith(
        "rank 0 holds step 10 in its checkpoint, and gives it to all: rank 1: missing"
    )
    assert "step 20 was committed and is not usable: rank 0: missing" in reasons(desk)[-1]
