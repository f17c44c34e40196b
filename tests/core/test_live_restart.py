"""Live rollback over a restart of the scheduler: what it sends again, compares again, and takes as proof of what there was."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.records import (
    CheckpointRecord,
    JobRecord,
    JobState,
    LiveSourceRecord,
)
from recovery.core.rules import Rules
from tests.core.desk import Desk, checkpoint, running_workers
from tests.core.survivors import (
    follow,
    live_generation,
    lose,
    ready_with,
    reasons,
    took,
)


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=3, rejoin_window_ms=0, live_rollback=True))


def test_a_restarted_scheduler_sends_the_same_plan_and_asks_all_again(desk: Desk) -> None:
    first, second, third = workers = live_generation(desk)
    plans = [worker.last(m.Rollback) for worker in workers]
    took(first)
    took(second)
    desk.restart()
    assert desk.row(JobRecord)[0].state is JobState.RUNNING
    third.generation = Generation(1)
    for worker in workers:
        assert isinstance(worker.register(), m.Admitted)
    # It had not received the plan.
    # How long ago disks were written to is not stored.
    assert third.last(m.Rollback) == msgspec.structs.replace(plans[2], since_disk_commit_ms=None)
    assert first.hears(m.Rollback) == second.hears(m.Rollback) == 0
    assert took(third) == []
    assert took(first) == []
    assert took(second) == [m.StateAgreed(generation=Generation(2))]
    assert desk.row(JobRecord)[0].state is JobState.RUNNING


def test_a_restarted_scheduler_compares_what_it_is_told_again(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    took(first)
    desk.restart()
    for worker in (first, second, third):
        worker.register()
    took(second, "another")
    assert first.hears(m.Interrupt) == 0
    took(first)
    assert first.last(m.Interrupt).generation == 2


def test_a_plan_to_a_checkpoint_has_no_source_after_a_restart(desk: Desk) -> None:
    first, second, third = live_generation(desk)
    third = lose(desk, third)
    for worker in (first, second, third):
        ready_with(worker, None)
    for worker in (first, second, third):
        worker.follow()
    assert len(desk.row(LiveSourceRecord)) == 1
    desk.restart()
    assert not desk.machine.state.live.sources
    third.generation = Generation(2)
    third.register()
    assert third.last(m.Rollback).live_rank is None


def test_a_job_without_any_checkpoint_begins_again_when_all_memory_is_lost_behind_a_restart(
    desk: Desk,
) -> None:
    """Nothing was ever saved, so a return to the beginning gives nothing up: as without live rollback."""
    workers = live_generation(desk)
    for worker in workers:
        took(worker)
    desk.restart()
    for worker in workers:
        worker.register()
    again = [lose(desk, worker) for worker in workers]
    for worker in again:
        ready_with(worker, None)
    plan = again[0].last(m.Rollback)
    assert (plan.step, plan.live_rank) == (0, None)
    assert reasons(desk)[-1].startswith("no rank has a checkpoint of this run yet")


def test_a_plan_to_a_checkpoint_is_proof_behind_a_restart_that_there_was_one(desk: Desk) -> None:
    workers = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for worker in workers:
        worker.save(20)
    workers = [lose(desk, worker) for worker in workers]
    for worker in workers:
        ready_with(worker, None, checkpoint(20, path=f"{worker.node_id}/20"))
    assert follow(workers).step == 20
    workers = [lose(desk, worker) for worker in workers]
    desk.rows = {key: row for key, row in desk.rows.items() if not isinstance(row, CheckpointRecord)}
    desk.restart()
    for worker in workers:
        worker.register()
        ready_with(worker, None)
    assert workers[0].last(m.JobEnded).outcome is m.JobOutcome.NO_COMMON_CHECKPOINT
