"""Which files were not taken, and why the plan is older than a step that was committed: said once, by name."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.ids import Incarnation, NodeId, Rank, RequestId, ResumeToken
from recovery.core.policy.retention import INDEXED_STEPS
from recovery.core.policy.rollback import RANKS_NAMED, STEPS_NAMED, Unusable, why_given_up
from recovery.core.records import EventKind, EventRecord
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.driven_worker import DrivenWorker, plan

WINDOW_MS = 1_000


def over(path: str, reason: str = "cut short", step: int = 0) -> m.Skipped:
    return m.Skipped(path=path, reason=reason, step=step)


def stopped(*steps: int) -> tuple[Desk, list[Worker], dict[NodeId, list[m.HeldCheckpoint]]]:
    """Two workers that have committed these steps, one of which came back; both have yet to say what they hold."""
    desk = Desk(Rules(worker_count=2, rejoin_window_ms=WINDOW_MS))
    workers = running_workers(desk)
    held = {worker.node_id: [worker.save(step) for step in steps] for worker in workers}
    workers[1].die()
    desk.at(desk.now + WINDOW_MS)
    workers[1] = Worker(desk, "worker_1")
    assert isinstance(workers[1].register(), m.Admitted)
    return desk, workers, held


def ready(worker: Worker, *held: m.HeldCheckpoint, over: tuple[m.Skipped, ...] = (), more: int = 0) -> None:
    worker.send(
        m.Ready(
            request_id=worker.request(),
            generation=worker.generation,
            step=0,
            held=held,
            passed_over=over,
            passed_over_more=more,
        )
    )


def events_of(desk: Desk, kind: EventKind = EventKind.CHECKPOINT_PASSED_OVER) -> list[EventRecord]:
    return [event for event in desk.events if event.kind is kind]


def planned(desk: Desk) -> tuple[int | None, str]:
    event = events_of(desk, EventKind.PLAN_MADE)[-1]
    return event.step, event.reason


def test_a_committed_step_that_is_given_up_is_named_with_rank_and_reason() -> None:
    given_up = ((30, "cut short"), (20, "missing"))
    desk, (first, second), held = stopped(10, 20, 30)
    ready(first, *held[first.node_id][:1], over=(over("worker_0/30"),))
    ready(second, *held[second.node_id])

    why = [f"step {step} was committed and is not usable: rank 0: {reason}" for step, reason in given_up]
    assert planned(desk) == (10, "; ".join(["every rank holds step 10", *why]))
    found = [(event.rank, event.step, event.details, event.reason) for event in events_of(desk)]
    assert found == [
        (0, None, "worker_0/30", "cut short"),
        (0, 20, "worker_0/20", "it was committed and is missing"),
    ]


def test_a_reason_is_found_by_the_file_by_its_directory_or_by_its_step() -> None:
    for passed in (
        over("worker_0/20", "why"),
        over("worker_0", "why"),
        over("elsewhere", "why", step=20),
    ):
        desk, (first, second), held = stopped(10, 20)
        ready(first, *held[first.node_id][:1], over=(passed,))
        ready(second, *held[second.node_id])
        assert planned(desk)[1].endswith("step 20 was committed and is not usable: rank 0: why"), passed


def test_what_was_said_is_no_news_and_what_changed_is() -> None:
    desk, (first, _), held = stopped(10)
    for passed in ((over("a"),), (over("a"),), (over("a", "gone"), over("b"))):
        ready(first, *held[first.node_id], over=passed)

    assert [(event.details, event.reason) for event in events_of(desk)] == [
        ("a", "cut short"),
        ("a", "gone"),
        ("b", "cut short"),
    ]


def test_more_files_than_a_message_names_are_counted() -> None:
    desk, (first, second), held = stopped(10)
    ready(first, *held[first.node_id], over=(over("a"),), more=7)
    ready(second, *held[second.node_id])

    assert events_of(desk)[-1].reason == "7 more files; the log of worker_0 names them"
    assert planned(desk) == (10, "every rank holds step 10; files that were passed over: 8")


def test_a_file_of_a_rolled_back_history_is_the_reason_why_its_step_is_given_up() -> None:
    desk, (first, second), held = stopped(10, 20)
    ready(first, *held[first.node_id][:1])
    ready(second, *held[second.node_id][:1])
    first.follow(), second.follow()
    first.save(20), second.save(20)
    second.die()
    desk.at(desk.now + WINDOW_MS)
    second = Worker(desk, "worker_1")
    second.register()
    ready(first, *held[first.node_id][:1], checkpoint(20, generation=2, path="worker_0/20"))
    ready(second, *held[second.node_id])

    assert planned(desk)[1].endswith(
        "step 20 was committed and is not usable: rank 1: it was written in generation 1, which a later plan rolled back"
    )


def test_a_restarted_scheduler_still_knows_which_steps_were_committed_and_which_file_failed() -> None:
    desk, (first, second), held = stopped(10, 20)
    ready(first, *held[first.node_id])
    ready(second, *held[second.node_id])
    generation = second.follow().generation
    second.send(
        m.CheckpointInvalid(
            request_id=second.request(), generation=generation, step=20, path="worker_1/20", reason="digest"
        )
    )
    desk.restart()
    for worker in (first, second):
        worker.register()
        worker.generation = generation
        ready(worker, *held[worker.node_id])

    assert planned(desk) == (
        10,
        "every rank holds step 10; step 20 was committed and is not usable: rank 1: digest",
    )


def test_a_step_that_only_a_plan_found_common_counts_as_committed() -> None:
    desk, (first, second), held = stopped(10)
    late = {worker.node_id: checkpoint(20, path=f"{worker.node_id}/20") for worker in (first, second)}
    for worker in (first, second):  # the reports of step 20 were lost with a scheduler
        ready(worker, *held[worker.node_id], late[worker.node_id])
    assert planned(desk)[0] == 20
    for worker in (first, second):
        worker.follow()
    second.die()
    desk.at(desk.now + WINDOW_MS)
    second = Worker(desk, "worker_1")
    second.register()
    ready(first, *held[first.node_id], late[first.node_id])
    ready(second, *held[second.node_id])

    assert planned(desk)[1].endswith("step 20 was committed and is not usable: rank 1: missing")


def test_a_file_that_was_brought_back_is_no_reason_any_more() -> None:
    desk, (first, second), held = stopped(10, 20)
    ready(first, *held[first.node_id][:1])
    ready(first, *held[first.node_id])
    ready(second, *held[second.node_id])

    assert planned(desk) == (20, "every rank holds step 20")


def test_a_reason_once_given_stands_until_there_is_another() -> None:
    desk, (first, second), held = stopped(10, 20)
    ready(first, *held[first.node_id][:1], over=(over("worker_0/20", "cut short"),))
    ready(first, *held[first.node_id][:1])
    ready(second, *held[second.node_id])

    assert planned(desk)[1].endswith("rank 0: cut short")


def test_a_job_without_a_common_step_says_why() -> None:
    desk, (first, second), held = stopped(10)
    ready(first, over=(over("worker_0/10", "it is of rank 1, not of rank 0"),))
    ready(second, *held[second.node_id])

    [failed] = events_of(desk, EventKind.JOB_FAILED)
    why = "step 10 was committed and is not usable: rank 0: it is of rank 1, not of rank 0"
    assert failed.reason.endswith(f"at step 0. Why: {why}.")


def test_a_rank_that_saves_a_given_up_step_again_has_it() -> None:
    index = CheckpointIndex(2)
    for rank in (0, 1):
        index.add(Rank(rank), checkpoint(10, path="a"))
    index.replace(Rank(0), ())
    assert list(index.given_up(0)[10]) == [0]

    index.add(Rank(0), checkpoint(10, path="a"))
    assert index.given_up(0) == {10: {}}
    assert index.reject(Rank(1), 10, "digest") is not None
    assert index.given_up(0) == {10: {1: Unusable(path="a", reason="digest")}}
    assert index.reject(Rank(1), 11, "never held") is None


def test_what_the_index_retires_is_given_up_by_nobody() -> None:
    index = CheckpointIndex(1)
    for step in range(10, 10 * (INDEXED_STEPS + 2), 10):
        index.add(Rank(0), checkpoint(step, path=f"/{step}"))
    index.reject(Rank(0), 10, "digest")
    index.retire()

    assert min(index.given_up(0)) == 20


def test_a_sentence_names_a_few_and_counts_the_rest() -> None:
    one = Unusable(path="", reason="missing")
    ranks = {Rank(number): one for number in range(RANKS_NAMED + 2)}
    steps = dict.fromkeys(range(STEPS_NAMED + 3, 0, -1), ranks)

    said = why_given_up(steps)
    assert said.endswith("and 3 older committed steps")
    assert said.count("rank 7: missing, and 2 more ranks") == STEPS_NAMED
    assert why_given_up({}) == ""


def test_a_worker_looks_for_the_files_of_its_rank_once_it_has_one() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.Interrupt(generation=plan(1).generation, reason="w1 lost"))
    driven.handle(s.TrainingStopped(plan(1).generation, 3))
    [find] = driven.effects_of(we.FindCheckpoints)
    assert find.rank == plan(1).rank

    again = DrivenWorker().registering()
    again.receive(
        m.Admitted(
            request_id=RequestId("r"),
            incarnation=Incarnation(2),
            token=ResumeToken("t"),
            rank=Rank(1),
            job="job",
            run=plan(1).run,
            scheduler_incarnation=Incarnation(2),
            resumed=False,
        )
    )
    [find] = again.effects_of(we.FindCheckpoints)
    assert find.rank == 1


def test_a_worker_names_so_many_files_as_fit_and_counts_the_rest() -> None:
    driven = DrivenWorker().admitted()
    found = tuple(over(str(number)) for number in range(m.SKIPPED_MAX + 3))
    driven.found(passed_over=found)

    [said] = driven.sent(m.Ready)
    assert (said.passed_over, said.passed_over_more) == (found[: m.SKIPPED_MAX], 3)
