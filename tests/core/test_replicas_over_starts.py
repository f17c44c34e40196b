"""Ranks that must hold the same and do not, while the scheduler or a rank is started again: the checkpoints themselves say it."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Rank, RunId
from recovery.core.policy import rebuild
from recovery.core.policy.next_plan import Facts, Plan, next_plan
from recovery.core.policy.replica_difference import (
    APART,
    Difference,
    difference_of_digests,
    digests_differ,
    joint_digest,
)
from recovery.core.policy.rollback import Unusable
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.survivors import in_memory, ready_with
from tests.core.test_replicas import BAD, NAMES, SOUND, WORSE, back, desk_of, file_of, save, save_all, told

A, B, C = (joint_digest(replica) for replica in (SOUND, BAD, WORSE))
OTHER_NAMES = joint_digest({"weight": "1"})


def started_again(desk: Desk, worker: Worker) -> Worker:
    """Its process was killed, and another one has its place."""
    worker.die()
    desk.at(desk.now + 1_000)
    again = Worker(desk, worker.node_id)
    assert isinstance(again.register(), m.Admitted)
    return again


def by_digests(*digests: str) -> Difference | None:
    return difference_of_digests({Rank(rank): digest for rank, digest in enumerate(digests)})


@pytest.mark.parametrize(
    ("digests", "ranks", "sentence"),
    [
        ((A, B, A), (1,), "rank 1 differs from the other ranks"),
        ((A, B), (0, 1), "ranks 0, 1 differ, and no more than half of them agree"),
        ((A, B, C), (0, 1, 2), "ranks 0, 1, 2 differ, and no more than half of them agree"),
        (("", A, B, A), (2,), "rank 2 differs from the other ranks"),
        ((OTHER_NAMES, A, B, A), (2,), "rank 2 differs from the other ranks"),
    ],
)
def test_joint_digests_name_the_ranks(
    digests: tuple[str, ...], ranks: tuple[int, ...], sentence: str
) -> None:
    found = by_digests(*digests)
    assert found is not None
    assert (found.ranks, found.sentence) == (ranks, sentence)


@pytest.mark.parametrize("digests", [(A, A), ("", B), (OTHER_NAMES, B), ("", ""), (APART, B, A)])
def test_ranks_that_say_nothing_or_name_other_tensors_are_not_compared(digests: tuple[str, ...]) -> None:
    assert by_digests(*digests) is None
    assert not digests_differ(digests)


def test_joint_digest_is_of_names_and_values_in_any_order() -> None:
    assert len({A, B, C, OTHER_NAMES}) == 4
    assert joint_digest(dict(reversed(SOUND.items()))) == A
    assert joint_digest({}) == ""
    assert len(joint_digest({"\udcff": "1"})) == 64, "a name that is no text to print"


def test_scheduler_that_starts_between_two_reports_compares_all_the_same() -> None:
    desk = desk_of()
    workers = running_workers(desk, *NAMES)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    first, second, third = workers
    save(first, 20, SOUND)
    save(second, 20, BAD)
    desk.restart()
    for worker in workers:
        worker.register()
    save(third, 20, SOUND)
    assert told(desk) == ["rank 1 differs from the other ranks"]
    assert desk.machine.state.checkpoints.committed_step == 10
    assert all(worker.hears(m.Interrupt) for worker in workers)
    assert back(*workers, held=held) == [10, 10, 10]


def test_many_saves_behind_one_damage_are_refused_each() -> None:
    """The scheduler was away for so long that the ranks tell of all of them at once."""
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    for step in range(20, 80, 10):
        save(workers[0], step, SOUND)
    for step in range(20, 80, 10):
        # As it is where steps change nothing any more: the same each time.
        save(workers[1], step, BAD)
    assert len(told(desk)) == 6
    assert not [reason for reason in told(desk) if "training" in reason]
    assert desk.machine.state.checkpoints.committed_step == 10
    assert back(*workers, held=held) == [10, 10]
    save_all(workers, 20, SOUND, BAD)
    assert "so training makes them differ" in told(desk)[-1]


def test_ranks_that_agree_now_and_then_are_let_be_in_the_end() -> None:
    """Their weights are averaged by hand, and that step is told before a rank hears that the one before it was refused."""
    desk = desk_of(2)
    workers = running_workers(desk)
    for step in range(10, 50, 10):
        save_all(workers, step, SOUND, {**SOUND, "weight": f"of step {step}"})
        held = {str(worker.node_id): [save(worker, step + 5, SOUND)] for worker in workers}
        if step < 40:
            assert back(*workers, held=held) == [step + 5] * 2
    assert "so training makes them differ" in told(desk)[-1]
    assert len(told(desk)) == 4


def died_before_it_told(desk: Desk, sound: dict[str, str] = SOUND) -> tuple[tuple[Worker, Worker], list[int]]:
    """Both have saved step 20, which differs, and rank 1 has died before it came to report it: who goes on, and where."""
    first, second = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, sound)] for worker in (first, second)}
    held[first.node_id].append(save(first, 20, sound))
    held[second.node_id].append(file_of(second, 20, BAD))
    again = started_again(desk, second)
    return (first, again), back(first, again, held=held)


def test_rank_that_died_before_it_told_of_its_save_is_named_before_the_plan() -> None:
    desk = desk_of(2)
    workers, steps = died_before_it_told(desk)
    assert steps == [10, 10]
    [reason] = told(desk)
    assert reason == (
        "ranks 0, 1 differ, and no more than half of them agree; it was not committed, and is not gone back to"
    )
    assert "every rank holds step 10; they hold step 20 as well, and differ in it" in plans(desk)[-1]

    save_all(workers, 20, SOUND, BAD)
    assert "so training makes them differ" in told(desk)[-1], "the same came of it again"
    assert desk.machine.state.checkpoints.committed_step == 20


def plans(desk: Desk) -> list[str]:
    return [event.reason for event in desk.events if event.kind is EventKind.PLAN_MADE]


def test_same_that_is_found_before_a_plan_again_is_of_training() -> None:
    desk = desk_of(2)
    (first, second), _ = died_before_it_told(desk)
    held = {str(first.node_id): [save(first, 20, SOUND)], str(second.node_id): [file_of(second, 20, BAD)]}
    again = started_again(desk, second)
    assert back(first, again, held=held) == [20, 20]
    assert "so training makes them differ" in told(desk)[-1]


def test_no_memory_is_gone_on_from_where_files_are_found_to_differ() -> None:
    desk = desk_of(2, live_rollback=True)
    first, second = running_workers(desk)
    held = [[save(worker, 10, SOUND)] for worker in (first, second)]
    held[0].append(save(first, 20, SOUND))
    held[1].append(file_of(second, 20, BAD))
    again = started_again(desk, second)
    ready_with(first, in_memory(24), *held[0])
    ready_with(again, None, *held[1])
    assert [worker.follow().step for worker in (first, again)] == [10, 10]


def test_first_save_that_differs_is_gone_back_behind() -> None:
    desk = desk_of(2)
    first, second = running_workers(desk)
    held = {str(first.node_id): [save(first, 10, SOUND)], str(second.node_id): [file_of(second, 10, BAD)]}
    again = started_again(desk, second)
    assert back(first, again, held=held) == [0, 0]
    assert "they hold step 10 as well, and differ in it" in plans(desk)[-1]


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_that_training_makes_ranks_differ_is_known_to_later_schedulers(restarts: int) -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    save_all(workers, 20, SOUND, BAD)
    back(*workers, held=held)
    save_all(workers, 20, SOUND, BAD)
    for number in range(restarts):
        desk.restart()
        for worker in workers:
            worker.register()
        for step in range(30 + 60 * number, 80 + 60 * number, 10):
            save_all(workers, step, SOUND, {**SOUND, "weight": f"of step {step}"})
            assert desk.machine.state.checkpoints.committed_step == step
    committed = desk.machine.state.checkpoints.committed_step
    of_each = {
        str(worker.node_id): [file_of(worker, committed, replica)]
        for worker, replica in zip(workers, (SOUND, WORSE), strict=True)
    }
    again = started_again(desk, workers[1])
    assert back(workers[0], again, held=of_each) == [committed, committed], "a rank is started again, too"
    assert len(told(desk)) == 2


def test_report_again_of_what_is_not_compared_any_more_changes_nothing() -> None:
    desk = desk_of(2, recovery_enabled=False)
    workers = running_workers(desk)
    save_all(workers, 10, SOUND, BAD)
    rows = desk.row(CheckpointRecord)
    assert [(row.state, row.replica) for row in rows] == [(CheckpointState.COMMITTED, APART)] * 2
    save_all(workers, 10, SOUND, BAD)
    assert desk.row(CheckpointRecord) == rows
    assert len(told(desk)) == 1


def test_what_was_refused_is_known_to_the_next_scheduler() -> None:
    """It is no damage if the same comes of the same steps."""
    desk = desk_of()
    workers = running_workers(desk, *NAMES)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    save_all(workers, 20, SOUND, BAD, SOUND)
    desk.restart()
    for worker in workers:
        worker.register()
    assert back(*workers, held=held) == [10, 10, 10]
    save_all(workers, 20, SOUND, BAD, SOUND)
    assert "so training makes them differ" in told(desk)[-1]
    assert desk.machine.state.checkpoints.committed_step == 20


@pytest.mark.parametrize("apart", [False, True])
def test_next_run_begins_to_compare_anew(apart: bool) -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    held = {str(worker.node_id): [save(worker, 10, SOUND)] for worker in workers}
    save_all(workers, 20, SOUND, BAD)
    back(*workers, held=held)
    if apart:
        save_all(workers, 20, SOUND, BAD)
    for worker in workers:
        worker.done()
    for worker in workers:
        worker.die()
    desk.at(desk.now + 500)
    desk.restart()
    workers = running_workers(desk)
    before = len(told(desk))
    for worker, replica in zip(workers, (SOUND, BAD), strict=True):
        of_run = msgspec.structs.replace(file_of(worker, 20, replica), run=RunId(2))
        worker.send(m.CheckpointReport(request_id=worker.request(), checkpoint=of_run, replica=replica))
    [reason] = told(desk)[before:]
    assert "training" not in reason
    assert desk.machine.state.checkpoints.committed_step == 0


def test_saves_that_name_other_tensors_are_committed_uncompared() -> None:
    desk = desk_of(2)
    workers = running_workers(desk)
    save_all(workers, 10, SOUND, {"weight": "9"})
    assert told(desk) == []
    assert desk.machine.state.checkpoints.committed_step == 10


def test_step_that_was_committed_stays_common_whatever_its_files_say_later() -> None:
    """As where an older release has noted nothing of what they hold."""
    desk = desk_of(2)
    workers = running_workers(desk)
    for worker in workers:
        worker.save(10)
    of_each = {
        str(worker.node_id): [file_of(worker, 10, replica)]
        for worker, replica in zip(workers, (SOUND, BAD), strict=True)
    }
    again = started_again(desk, workers[1])
    assert back(workers[0], again, held=of_each) == [10, 10]
    assert told(desk) == []


def test_where_ranks_differ_in_all_that_is_left_training_has_made_them_differ() -> None:
    """Step 10 was committed, and rank 1 has lost it: the job does not end by what may be its own doing."""
    desk = desk_of(2)
    first, second = running_workers(desk)
    held = [save(worker, 10, SOUND) for worker in (first, second)]
    mine, other = save(first, 20, SOUND), file_of(second, 20, BAD)
    again = started_again(desk, second)
    assert back(first, again, held={first.node_id: [held[0], mine], again.node_id: [other]}) == [20, 20]
    assert "there is no step left in which they do not" in told(desk)[-1]
    save_all((first, again), 30, SOUND, WORSE)
    assert desk.machine.state.checkpoints.committed_step == 30
    assert len(told(desk)) == 1


def test_a_plan_of_files_that_all_differ_says_so() -> None:
    held = {
        step: {
            Rank(rank): msgspec.structs.replace(checkpoint(step), replica=digest)
            for rank, digest in enumerate((A, B))
        }
        for step in (10, 20)
    }
    facts = Facts(
        world_size=2,
        held=held,
        of_one={},
        given_up={5: {Rank(0): Unusable(path="", reason="gone")}},
        ever_committed=True,
        allow_restart_from_zero=True,
    )
    decided = next_plan(facts)
    assert isinstance(decided, Plan)
    assert (decided.step, facts.alike_step) == (20, 0)
    assert "they differ in it, as in every step that is left" in decided.reason


def test_store_that_is_rebuilt_from_files_that_differ_goes_on_from_them() -> None:
    """Of the job nothing is known but what the ranks hold, of which no step is alike."""
    histories = {}
    for rank, digest in enumerate((A, B)):
        held = tuple(
            msgspec.structs.replace(checkpoint(step, path=f"/d/{rank}/{step}"), replica=digest)
            for step in (10, 20)
        )
        histories[f"worker_{rank}"] = m.JobHistory(
            job="job",
            run=held[0].run,
            rank=Rank(rank),
            worker_count=2,
            server_count=0,
            incarnation=held[0].generation,  # type: ignore[arg-type]  # 1, as that is
            generation=held[0].generation,
            scheduler_incarnation=held[0].generation,  # type: ignore[arg-type]  # as above
            held=held,
        )
    found = rebuild.rebuild(histories)  # type: ignore[arg-type]  # node ids are text
    assert isinstance(found, rebuild.Rebuilt)
    [row] = found.checkpoints
    assert (row.step, row.state) == (20, CheckpointState.COMMITTED)
