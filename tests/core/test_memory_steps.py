"""Checkpoints in memory count for a plan as those on disks do, and promise less: they go with their host."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import HandedOver
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.ids import Rank
from recovery.core.policy.next_plan import End, Plan, next_plan
from recovery.core.policy.retention import IN_MEMORY_STEPS
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, JobRecord, JobState, to_record
from recovery.core.rules import Rules
from recovery.core.tiers import Tier, tier_of
from recovery.core.worker import effects as we
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.drained import Drained
from tests.core.driven_worker import DrivenWorker
from tests.core.survivors import in_memory as state_in_memory
from tests.core.survivors import ready_with
from tests.core.test_checkpoint_index import began

MEMORY = "/dev/shm/recovery-memory-1000-abc/run-1-rank"


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2, rejoin_window_ms=0))


def in_memory(step: int, rank: int, *, generation: int = 1) -> m.HeldCheckpoint:
    return checkpoint(step, generation=generation, path=f"{MEMORY}-{rank}/t-1_{step}.ckpt")


def on_disk(step: int, rank: int) -> m.HeldCheckpoint:
    return checkpoint(step, path=f"/disk/{rank}/t-1_{step}.ckpt")


def save_in_memory(worker: Worker, step: int, rank: int) -> m.HeldCheckpoint:
    held = in_memory(step, rank, generation=worker.generation)
    worker.send(m.CheckpointReport(request_id=worker.request(), checkpoint=held))
    return held


def index_of(*steps: m.HeldCheckpoint) -> CheckpointIndex:
    """Two ranks that hold these, reported in order by one rank after the other."""
    index = CheckpointIndex(2)
    for rank in (0, 1):
        for held in steps:
            index.add(Rank(rank), held)
    return index


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        (f"{MEMORY}-0/t-1_1.ckpt", Tier.MEMORY),
        ("recovery-memory-0-a/run-1-rank-0/t-1_1.ckpt", Tier.MEMORY),
        ("/recovery-memory-0-a/t-1_1.ckpt", Tier.DISK),
        ("/recovery-memory-0-a/x/y/t-1_1.ckpt", Tier.DISK),
        ("/disk/0/t-1_1.ckpt", Tier.DISK),
        ("t-1_1.ckpt", Tier.DISK),
        ("", Tier.DISK),
    ],
)
def test_the_path_says_on_what_a_checkpoint_lies(path: str, tier: Tier) -> None:
    assert tier_of(path) is tier


def test_the_plan_goes_to_the_newest_step_on_whatever_it_lies(desk: Desk) -> None:
    first, second = running_workers(desk)
    disk = first.save(10)
    second.save(10)
    memory = save_in_memory(first, 20, 0), save_in_memory(second, 20, 1)
    assert [one.reason for one in desk.events if one.kind is EventKind.CHECKPOINT_COMMITTED] == [
        "",
        "in memory",
    ]

    second.die()
    desk.at(1_000)
    first.ready(disk, memory[0])
    again = Worker(desk, "worker_1")
    again.register()
    again.ready(checkpoint(10, path="worker_1/10"), memory[1])

    plan = again.follow()
    assert (plan.step, plan.path, plan.committed_step, plan.durable_step) == (20, memory[1].path, 20, 10)
    assert plan.step_on_disks == 10


def test_memory_that_a_host_has_lost_sends_all_to_the_disk_and_is_nobodys_fault(desk: Desk) -> None:
    first, second = running_workers(desk)
    disk = first.save(10), second.save(10)
    memory = save_in_memory(first, 20, 0)
    save_in_memory(second, 20, 1)

    second.die()
    desk.at(1_000)
    first.ready(disk[0], memory)
    again = Worker(desk, "worker_1")
    again.register()
    again.ready(disk[1])

    assert again.follow().step == 10
    [*_, planned] = [one for one in desk.events if one.kind is EventKind.PLAN_MADE]
    assert "step 20 was committed and is not usable: rank 1: it was in memory" in planned.reason
    assert EventKind.CHECKPOINT_PASSED_OVER not in desk.kinds()


def test_without_a_disk_the_job_starts_again_instead_of_failing(desk: Desk) -> None:
    """Memory promises nothing over the end of a host, so nothing that was promised is lost."""
    first, second = running_workers(desk)
    memory = save_in_memory(first, 20, 0)
    save_in_memory(second, 20, 1)
    desk.restart()
    desk.at(31_000)
    first.register()
    first.ready(memory)
    again = Worker(desk, "worker_1")
    again.register()
    again.ready()

    assert again.follow().step == 0
    assert desk.row(JobRecord)[0].state is JobState.RUNNING


def test_a_disk_step_behind_a_newer_one_in_memory_is_committed_too(desk: Desk) -> None:
    """A slow disk finishes step 10 when step 20 is in memory already: retention must hear of it."""
    first, second = running_workers(desk)
    save_in_memory(first, 20, 0)
    save_in_memory(second, 20, 1)
    said = first.last(m.Committed)
    assert (said.step, said.durable_step) == (20, 0)
    first.save(10)
    second.save(10)
    said = first.last(m.Committed)
    assert (said.step, said.durable_step) == (20, 10)
    states = {(row.step, row.state) for row in desk.row(CheckpointRecord)}
    assert states == {(10, CheckpointState.COMMITTED), (20, CheckpointState.COMMITTED)}
    first.save(30)
    second.save(30)
    said = first.last(m.Committed)
    assert (said.step, said.durable_step) == (30, None)


def test_a_step_that_is_saved_on_the_disk_as_well_becomes_durable() -> None:
    index = index_of(in_memory(10, 0))
    assert (index.committed_step, index.durable_step) == (10, 0)
    assert index.add(Rank(0), on_disk(10, 0)) is False, "the other rank has it in memory only"
    assert index.add(Rank(1), on_disk(10, 1)) is True
    assert (index.committed_step, index.durable_step, index.durable_unless_committed) == (10, 10, None)


def test_of_steps_in_memory_the_index_keeps_what_the_ranks_keep() -> None:
    index = index_of(on_disk(5, 0), *(in_memory(step, 0) for step in (10, 20, 30)))
    gone = index.retire()
    assert {(row.step, row.state) for row in gone} == {(10, CheckpointState.RETIRED)}
    assert len([row for row in index.held_records() if row.rank == 0]) == 1 + IN_MEMORY_STEPS
    assert index.retire() == []
    index.replace(Rank(1), [on_disk(5, 1)])
    assert index.given_up(5).keys() == {30, 20}, "what was let go before is not given up"


def test_a_step_in_memory_leaves_the_index_behind_a_newer_one_on_all_disks() -> None:
    index = index_of(in_memory(10, 0), on_disk(15, 0), in_memory(20, 0))
    assert {(row.step, row.state) for row in index.retire()} == {(10, CheckpointState.RETIRED)}
    assert {row.step for row in index.held_records()} == {15, 20}


def test_a_standby_needs_what_lies_on_disks() -> None:
    """What its host's memory held is gone with the rank, wherever the standby is."""
    index = index_of(on_disk(5, 0), in_memory(10, 0))
    assert index.needed_of(Rank(1)) == on_disk(5, 0)
    assert index_of(in_memory(10, 0)).needed_of(Rank(1)) is None


@pytest.mark.parametrize(("durable", "kind"), [(True, End), (False, Plan)])
def test_only_what_lay_on_all_disks_is_worth_failing_for(durable: bool, kind: type[object]) -> None:
    index = CheckpointIndex(2)
    held = [on_disk(10, rank) if durable else in_memory(10, rank) for rank in (0, 1)]
    records = [to_record(Rank(rank), held[rank], CheckpointState.COMMITTED) for rank in (0, 1)]
    index.load(records, [began(1, 0), began(2, 10)])
    index.replace(Rank(1), [])
    assert isinstance(next_plan(index.facts(allow_restart_from_zero=False)), kind)


def test_a_plan_at_a_step_in_memory_makes_nothing_durable() -> None:
    index = index_of(in_memory(10, 0))
    index.roll_back(10)
    assert (index.committed_step, index.durable_step) == (10, 0)
    index.replace(Rank(0), [])
    assert isinstance(next_plan(index.facts(allow_restart_from_zero=False)), Plan)


def test_what_all_disks_are_found_to_hold_is_worth_failing_for_behind_a_plan_to_memory() -> None:
    """The report of a save was cut off; its files are found before the next plan, which goes to a newer step in memory."""
    index = CheckpointIndex(2)
    for rank in (0, 1):
        index.replace(Rank(rank), [on_disk(10, rank), in_memory(12, rank)])
    index.roll_back(12)
    assert index.durable_step == 10
    index.replace(Rank(1), [])
    assert isinstance(next_plan(index.facts(allow_restart_from_zero=False)), End)


def test_a_bad_file_in_memory_sends_all_to_the_one_before() -> None:
    index = index_of(on_disk(5, 0), in_memory(10, 0))
    index.reject(Rank(1), 10, "changed")
    target = next_plan(index.facts(allow_restart_from_zero=False))
    assert isinstance(target, Plan)
    assert target.step == 5


def test_a_handover_waits_for_the_disks() -> None:
    """The standby may be on another host, and what the departing node has in memory goes with it."""
    drained = Drained()
    drained.depart()
    for answer in (14, 14):
        for worker in drained.workers:
            drained.answer(worker, answer)
    for rank, worker in enumerate(drained.workers):
        save_in_memory(worker, 15, rank)
    assert drained.desk.machine.state.checkpoints.committed_step == 15
    assert not drained.one.hears(HandedOver)
    for worker in drained.workers:
        worker.save(15)
    assert drained.one.hears(HandedOver) == 1


def test_a_worker_is_told_which_step_lies_on_disks() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.Committed(run=checkpoint(1).run, step=20, durable_step=10))
    assert driven.effects_of(we.Retain)[-1] == we.Retain(20, (), 10)


def test_a_plan_says_how_long_ago_the_disks_had_their_last_commit(desk: Desk) -> None:
    """Schedules by time go by it: what counts from a generation's begin never ends where failures are closer together."""
    desk.at(100)
    first, second = running_workers(desk)
    assert first.last(m.Rollback).since_disk_commit_ms == 0
    desk.at(5_000)
    one = first.save(10), second.save(10)
    desk.at(7_000)
    memory = save_in_memory(first, 20, 0), save_in_memory(second, 20, 1)
    desk.at(8_000)
    second.die()
    desk.at(9_000)
    first.ready(one[0], memory[0])
    again = Worker(desk, "worker_1")
    again.register()
    desk.at(9_500)
    again.ready(one[1], memory[1])
    assert (first.follow().since_disk_commit_ms, again.follow().since_disk_commit_ms) == (4_500, 4_500)


def test_plan_to_memory_says_how_long_ago_the_disks_had_their_last_commit() -> None:
    desk = Desk(Rules(worker_count=2, live_rollback=True))
    workers = running_workers(desk)
    desk.at(5_000)
    held = [one.save(10) for one in workers]
    # It breaks at the same step again, so its next generation begins a little later.
    for now, since_ms in ((20_000, 15_000), (40_000, 35_100)):
        desk.at(now)
        workers[0].send(m.CollectiveFailed(generation=workers[0].generation, step=12, reason="reset"))
        state = state_in_memory(12, generation=workers[0].generation)
        for one, file in zip(workers, held, strict=True):
            ready_with(one, state, file)
        desk.at(now + 100)
        plans = [one.follow() for one in workers]
        assert [(plan.live_rank, plan.since_disk_commit_ms) for plan in plans] == [(0, since_ms)] * 2


def test_a_plan_of_a_scheduler_that_was_started_again_does_not_know_it(desk: Desk) -> None:
    first, second = running_workers(desk)
    held = first.save(10), second.save(10)
    desk.restart()
    desk.at(31_000)
    first.register()
    first.ready(held[0])
    again = Worker(desk, "worker_1")
    again.register()
    again.ready(held[1])
    plan = again.follow()
    assert (plan.step, plan.step_on_disks, plan.since_disk_commit_ms) == (10, 10, None)
