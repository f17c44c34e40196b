"""Live rollback where the state is spread over the ranks and held several times: each part has its own source."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.held import LiveState
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.records import EventKind, LiveSourceRecord
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.survivors import could_not, follow, in_memory, lose, ready_with, reasons, took

SHAPES = "0e" * 32, "0f" * 32
"""Of the two shards: they are cut unevenly."""


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=4, rejoin_window_ms=0, live_rollback=True))


def shard(rank: int, step: int) -> LiveState:
    """What a rank of two replicas by two shards holds."""
    replicas = (Rank(rank % 2), Rank(rank % 2 + 2))
    return msgspec.structs.replace(in_memory(step, structure=SHAPES[rank % 2]), replicas=replicas)


def survivors(desk: Desk, *steps: int) -> list[Worker]:
    """Rank 3 died; the others say which step they have in memory, and all hold step 20 on their disks."""
    workers = running_workers(desk, *(f"worker_{rank}" for rank in range(4)))
    for worker in workers:
        worker.save(20)
    workers[3] = lose(desk, workers[3])
    for rank, worker in enumerate(workers):
        live = shard(rank, steps[rank]) if rank < len(steps) else None
        ready_with(worker, live, checkpoint(20, path=f"{worker.node_id}/20"))
    return workers


def sharded_generation(desk: Desk) -> list[Worker]:
    """All follow the plan to the memories of ranks 0 and 1."""
    workers = survivors(desk, 25, 25, 25)
    follow(workers)
    return workers


def test_each_rank_is_sent_to_the_lowest_survivor_that_has_its_part(desk: Desk) -> None:
    workers = survivors(desk, 25, 25, 25)
    for rank, worker in enumerate(workers):
        plan = worker.last(m.Rollback)
        assert (plan.step, plan.path, plan.committed_step) == (25, "", 20)
        assert (plan.live_rank, plan.live_structure) == (rank % 2, SHAPES[rank % 2])
        assert plan.live_replicas == (rank % 2, rank % 2 + 2)
    assert desk.row(LiveSourceRecord) == [
        LiveSourceRecord(
            run=RunId(1),
            generation=Generation(2),
            rank=Rank(rank),
            structure=SHAPES[rank],
            replicas=f"{rank},{rank + 2}",
        )
        for rank in (0, 1)
    ]
    assert reasons(desk)[-1] == (
        "ranks 0, 1 hold step 25 in their memories, each a part of it, and give it to their replicas"
    )


def test_the_plan_stands_at_the_newest_step_that_each_part_has(desk: Desk) -> None:
    workers = survivors(desk, 25, 24, 24)
    assert [worker.last(m.Rollback).live_rank for worker in workers] == [2, 1, 2, 1]
    assert {worker.last(m.Rollback).step for worker in workers} == {24}


def test_no_step_that_each_part_has_leaves_the_checkpoint_and_says_whose_part_is_missing(desk: Desk) -> None:
    workers = survivors(desk, 25, 24, 25)
    assert [worker.last(m.Rollback).live_rank for worker in workers] == [None] * 4
    assert {worker.last(m.Rollback).step for worker in workers} == {20}
    assert reasons(desk)[-1] == (
        "every rank holds step 20; no live rollback: rank 0: of step 25 it has its own part, and nobody has that of rank 1, "
        "rank 1: of step 24 it has its own part, and nobody has that of rank 0, "
        "rank 2: of step 25 it has its own part, and nobody has that of rank 1"
    )


def test_what_replicas_have_taken_is_compared_and_what_others_have_is_not(desk: Desk) -> None:
    first, second, third, fourth = sharded_generation(desk)
    took(first, "even")
    took(second, "odd")
    took(third, "even")
    assert first.hears(m.StateAgreed) == 0
    took(fourth, "odd")
    assert [worker.hears(m.StateAgreed) for worker in (first, second, third, fourth)] == [1, 1, 1, 1]


def test_a_replica_that_took_something_else_ends_the_generation(desk: Desk) -> None:
    first, second, third, fourth = sharded_generation(desk)
    took(first, "even")
    took(second, "odd")
    took(fourth, "even")
    assert third.last(m.Interrupt).generation == 2
    assert reasons(desk, EventKind.GENERATION_INTERRUPTED)[-1] == (
        "rank 1 and rank 3 hold different states of step 25 after they took it from rank 1"
    )


def test_a_source_that_fails_costs_the_step_for_all(desk: Desk) -> None:
    workers = sharded_generation(desk)
    could_not(workers[1])
    for rank, worker in enumerate(workers):
        ready_with(worker, shard(rank, 25) if rank < 3 else None, checkpoint(20, path=f"{worker.node_id}/20"))
    assert {(worker.last(m.Rollback).step, worker.last(m.Rollback).live_rank) for worker in workers} == {
        (20, None)
    }


def test_a_restarted_scheduler_sends_each_rank_to_the_same_source(desk: Desk) -> None:
    workers = sharded_generation(desk)
    before = [worker.last(m.Rollback) for worker in workers]
    desk.restart()
    for worker in workers:
        # It has not heard of the plan.
        worker.generation = Generation(1)
        worker.register()
    for worker, known in zip(workers, before, strict=True):
        again = worker.last(m.Rollback)
        assert again.generation == known.generation
        assert (again.live_rank, again.live_structure, again.live_replicas) == (
            known.live_rank,
            known.live_structure,
            known.live_replicas,
        )


def test_a_reason_names_four_sources_and_counts_the_others() -> None:
    desk = Desk(Rules(worker_count=6, rejoin_window_ms=0, live_rollback=True))
    workers = running_workers(desk, *(f"worker_{rank}" for rank in range(6)))
    workers[5] = lose(desk, workers[5])
    for rank, worker in enumerate(workers[:5]):
        replicas = (Rank(4), Rank(5)) if rank >= 4 else (Rank(rank),)
        ready_with(worker, msgspec.structs.replace(in_memory(7), replicas=replicas))
    ready_with(workers[5], None)
    assert workers[5].last(m.Rollback).live_rank == 4
    assert reasons(desk)[-1].startswith("ranks 0, 1, 2, 3 and 1 more hold step 7 in their memories")
