"""Ranks that must hold the same and do not: nobody goes back to what they saved, and the rank is named."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.effects import Log
from recovery.core.ids import Rank, ResumeToken
from recovery.core.policy.replica_difference import Difference, difference, joint_digest
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, JobRecord, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.replica_watch import STEPS_MAX
from recovery.core.scheduler.stimuli import MessageReceived
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.survivors import in_memory, ready_with

SOUND = {"weight": "1", "bias": "2"}
BAD = {"weight": "9", "bias": "2"}
WORSE = {"weight": "9", "bias": "8"}
NAMES = ("worker_0", "worker_1", "worker_2")


def of(*replicas: dict[str, str]) -> Difference | None:
    return difference({Rank(rank): replica for rank, replica in enumerate(replicas)})


@pytest.mark.parametrize(
    ("replicas", "ranks", "sentence"),
    [
        ((SOUND, BAD, SOUND), (1,), "rank 1 differs from the other ranks in weight"),
        ((SOUND, BAD), (0, 1), "ranks 0, 1 differ in weight, and no more than half of them agree"),
        (
            (SOUND, BAD, WORSE),
            (0, 1, 2),
            "ranks 0, 1, 2 differ in weight, bias, and no more than half of them agree",
        ),
        ((SOUND, SOUND, SOUND, BAD, WORSE), (3, 4), "ranks 3, 4 differ from the other ranks in weight, bias"),
    ],
)
def test_most_ranks_are_believed(
    replicas: tuple[dict[str, str], ...], ranks: tuple[int, ...], sentence: str
) -> None:
    found = of(*replicas)
    assert found is not None
    assert (found.ranks, found.sentence) == (ranks, sentence)


def test_only_what_all_ranks_name_is_compared() -> None:
    assert of(SOUND, SOUND) is None
    assert of(SOUND, {"bias": "2"}) is None
    assert of(SOUND, {}) is None


def test_of_many_names_the_first_are_told() -> None:
    many = [{f"layer {number}": str(number * rank) for number in range(1, 6)} for rank in range(20)]
    found = of(*many)
    assert found is not None
    assert found.sentence == (
        "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more differ in layer 1, layer 2, layer 3 and 2 more, and no more than half of them agree"
    )


# --- the scheduler ------------------------------------------------------------------------------------------------------


def desk_of(workers: int = 3, **rules: object) -> Desk:
    return Desk(msgspec.structs.replace(Rules(worker_count=workers, rejoin_window_ms=0), **rules))


def save(worker: Worker, step: int, replica: dict[str, str]) -> m.HeldCheckpoint:
    held = file_of(worker, step, replica)
    worker.send(m.CheckpointReport(request_id=worker.request(), checkpoint=held, replica=replica))
    return held


def file_of(worker: Worker, step: int, replica: dict[str, str]) -> m.HeldCheckpoint:
    """What a rank has saved, whether it has come to report it or not."""
    held = checkpoint(step, generation=worker.generation, path=f"{worker.node_id}/{step}")
    return msgspec.structs.replace(held, replica=joint_digest(replica))


def save_all(workers: Sequence[Worker], step: int, *replicas: dict[str, str]) -> None:
    for worker, replica in zip(workers, replicas, strict=True):
        save(worker, step, replica)


def told(desk: Desk) -> list[str]:
    return [event.reason for event in desk.events if event.kind is EventKind.REPLICAS_DIFFER]


def back(*workers: Worker, held: dict[str, list[m.HeldCheckpoint]]) -> list[int]:
    """All are ready with what they hold; where the plan goes."""
    for worker in workers:
        worker.ready(*held[worker.node_id])
    return [worker.follow().step for worker in workers]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_rank_that_differs_is_named_and_all_go_back_to_where_they_agreed(odd: int) -> None:
    desk = desk_of()
    workers = running_workers(desk, *NAMES)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    for rank, worker in enumerate(workers):
        held[worker.node_id].append(save(worker, 20, BAD if rank == odd else SOUND))

    assert told(desk) == [f"rank {odd} differs from the other ranks in weight"]
    assert desk.machine.state.checkpoints.committed_step == 10
    assert all(worker.hears(m.Interrupt) for worker in workers)
    bad = [row for row in desk.row(CheckpointRecord) if row.state is CheckpointState.INVALID]
    assert [(row.rank, row.step) for row in bad] == [(odd, 20)]
    desk.restart()
    for worker in workers:
        worker.register()
    assert back(*workers, held=held) == [10, 10, 10], "nobody goes to step 20, under a later scheduler either"

    save_all(workers, 20, SOUND, SOUND, SOUND)
    assert desk.machine.state.checkpoints.committed_step == 20, "done again it is sound"


def test_two_ranks_that_differ_are_both_refused() -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {
        str(worker.node_id): [save(worker, 10, SOUND), save(worker, 20, replica)]
        for worker, replica in zip(workers, (SOUND, BAD), strict=True)
    }
    bad = [row for row in desk.row(CheckpointRecord) if row.state is CheckpointState.INVALID]
    assert [(row.rank, row.step) for row in bad] == [(0, 20), (1, 20)]
    assert back(*workers, held=held) == [10, 10]


def test_ranks_that_training_makes_differ_are_told_and_train_on() -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    save_all(workers, 20, SOUND, BAD)
    back(*workers, held=held)
    # They agree until there.
    save_all(workers, 15, SOUND, SOUND)
    save_all(workers, 20, SOUND, BAD)

    first, second = told(desk)
    assert second.startswith(first)
    assert "so training makes them differ" in second
    assert desk.machine.state.checkpoints.committed_step == 20
    save_all(workers, 30, SOUND, WORSE)
    assert len(told(desk)) == 2
    assert desk.machine.state.checkpoints.committed_step == 30


def test_ranks_that_differ_otherwise_each_time_are_let_be_in_the_end() -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    for times in range(4):
        assert desk.machine.state.checkpoints.committed_step == 10
        save_all(workers, 20, SOUND, {**SOUND, "weight": f"{times} times"})
        if times < 3:
            back(*workers, held=held)
    assert len(told(desk)) == 4
    assert desk.machine.state.checkpoints.committed_step == 20


def test_what_differed_long_ago_says_nothing_of_now() -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    for step in range(20, 70, 10):
        save_all(workers, step, SOUND, BAD)
        assert back(*workers, held=held) == [step - 10] * 2
        for worker in workers:
            held[worker.node_id].append(save(worker, step, SOUND))
    assert len(told(desk)) == 5


def test_without_recovery_it_is_told_and_training_goes_on() -> None:
    desk = desk_of(2, recovery_enabled=False)
    workers = running_workers(desk)
    for step in (10, 20):
        save_all(workers, step, SOUND, BAD)
    assert len(told(desk)) == 1, "said once: nothing follows from it"
    assert desk.row(JobRecord)[0].state is JobState.RUNNING
    assert desk.machine.state.checkpoints.committed_step == 20


def test_rank_that_says_nothing_is_not_compared() -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    save_all(workers, 10, SOUND, {})
    assert told(desk) == []
    assert desk.machine.state.checkpoints.committed_step == 10


def test_save_that_was_taken_back_meanwhile_is_not_compared() -> None:
    """Of a rank whose file was found damaged there is nothing to commit."""
    desk = desk_of(2)
    first, second = running_workers(desk)
    save(first, 10, SOUND)
    held = desk.machine.state.checkpoints.file_of(Rank(0), 10)
    assert held is not None
    desk.machine.state.checkpoints.refuse(Rank(0), held)
    save(second, 10, BAD)
    assert told(desk) == []
    assert desk.machine.state.checkpoints.committed_step == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_no_memory_is_gone_on_from_where_ranks_differed(restarts: bool) -> None:
    desk = desk_of(2, live_rollback=True)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    save_all(workers, 20, SOUND, BAD)
    if restarts:
        desk.restart()
        for worker in workers:
            worker.register()
    for worker in workers:
        ready_with(worker, in_memory(24), *held[worker.node_id])
    assert [worker.follow().step for worker in workers] == [10, 10]


def test_memory_is_not_gone_on_from_where_a_loss_came_first_and_the_scheduler_starts_again() -> None:
    desk = desk_of(3, live_rollback=True)
    first, second, third = running_workers(desk, *NAMES)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in (first, second, third)}
    save(first, 20, SOUND)
    save(third, 20, SOUND)
    third.die()
    desk.at(desk.now + 1_000)
    save(second, 20, BAD)
    assert told(desk) == ["rank 1 differs from the other ranks in weight"]
    desk.restart()
    again = Worker(desk, third.node_id)
    for worker in (first, second, again):
        worker.register()
        ready_with(worker, None if worker is again else in_memory(24), *held[worker.node_id])
    assert [worker.follow().step for worker in (first, second, again)] == [10, 10, 10]


def test_step_that_not_all_ranks_have_told_of_is_committed_and_said_once() -> None:
    desk = desk_of(2)
    first, second = running_workers(desk)
    said = []
    for step in range(10, 200, 10):
        save(first, step, SOUND)
        held = file_of(second, step, {})
        report = m.CheckpointReport(request_id=second.request(), checkpoint=held)
        effects = desk.machine.handle(
            MessageReceived(second.connection, report, "10.0.0.1", ResumeToken("t"), None), desk.now
        )
        said += [effect.text for effect in effects if isinstance(effect, Log)]
    assert desk.machine.state.checkpoints.committed_step == 190
    [text] = said
    assert text.startswith("step 10 is committed, and not all ranks' checkpoints were compared: 1 of 2 say")
    said_of = [step for step in range(10, 200, 10) if desk.machine.state.replicas.said(step)]
    assert said_of == [*range(190 - 10 * STEPS_MAX + 10, 200, 10)]
