"""Who comes when the job has finished: no run begins in a scheduler that ends, and nobody waits for a run that nobody starts."""

from __future__ import annotations

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId, RunId
from recovery.core.records import EventKind, JobRecord, JobState, NodeRecord, NodeState, RunRecord
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from tests.core.desk import Desk, Worker, running_workers
from tests.core.driven_worker import DrivenWorker


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def finish(desk: Desk, *, gone: int) -> list[Worker]:
    """A job whose two workers are done; so many have received it and disconnected."""
    workers = running_workers(desk)
    for worker in workers:
        worker.done()
    for worker in workers[:gone]:
        worker.die()
    return workers


@pytest.mark.parametrize("name", ["worker_0", "worker_1", "worker_7"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_registers_while_a_finished_scheduler_ends_is_sent_the_end_and_begins_no_run(
    desk: Desk, name: str, gone: int
) -> None:
    finish(desk, gone=gone)

    answer = Worker(desk, name).register()

    assert isinstance(answer, m.JobEnded)
    assert answer.outcome is m.JobOutcome.FINISHED
    assert len(desk.row(RunRecord)) == 1
    desk.at(desk.now + 10_000)
    assert desk.exit is not None
    assert desk.exit.code == ""


def test_the_next_scheduler_begins_the_next_run_for_those_who_come(desk: Desk) -> None:
    finish(desk, gone=2)
    assert isinstance(Worker(desk, "worker_0").register(), m.JobEnded)
    desk.at(desk.now + 10_000)
    desk.restart()

    assert isinstance(Worker(desk, "worker_0").register(), m.Admitted)
    [job] = desk.row(JobRecord)
    assert (job.run, job.state) == (2, JobState.FORMING)


def test_a_leftover_of_the_finished_run_is_sent_the_end_by_the_next_run_s_scheduler(desk: Desk) -> None:
    [leftover, _] = finish(desk, gone=2)
    desk.at(desk.now + 10_000)
    desk.restart()

    answer = leftover.register()

    assert isinstance(answer, m.JobEnded)
    assert answer.outcome is m.JobOutcome.FINISHED


def test_a_scheduler_that_was_killed_while_it_ended_informs_everybody_and_ends(desk: Desk) -> None:
    finish(desk, gone=1)
    desk.restart()

    # Relaunched; one had received the end before and one had not.
    for name in ("worker_0", "worker_1"):
        assert isinstance(Worker(desk, name).register(), m.JobEnded)
    assert len(desk.row(RunRecord)) == 1
    desk.at(desk.now + desk.rules.lease_ms)
    assert desk.exit is not None
    assert {row.state for row in desk.row(NodeRecord)} == {NodeState.LEFT}


def test_who_comes_after_the_end_says_that_there_is_nothing_to_do() -> None:
    driven = DrivenWorker().registering()
    driven.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all 2 ranks are done at step 9"))

    [said] = driven.effects_of(e.Log)
    assert said.event == "nothing_to_do"
    assert "all 2 ranks are done at step 9" in said.text
    assert driven.effects_of(e.Exit) == [e.Exit("", "all 2 ranks are done at step 9")]


def test_who_took_part_needs_no_such_message() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="done"))
    assert driven.effects_of(e.Log) == []


def test_a_late_comer_is_an_event(desk: Desk) -> None:
    finish(desk, gone=2)
    Worker(desk, "worker_7").register()
    Worker(desk, "worker_7").register()

    refused = [event for event in desk.events if event.kind is EventKind.NODE_REFUSED]
    assert [(event.node_id, event.reason.partition(":")[0]) for event in refused] == [
        ("worker_7", "JOB_ENDED")
    ]


# --- no scheduler any more ---------------------------------------------------------------------------------------------


FINISHED = "run 1: all 2 ranks are done at step 9"


def unreachable(driven: DrivenWorker, at: int, finished: str) -> None:
    driven.handle(s.ConnectFailed("connection refused", 0.5, finished), at)


def test_a_late_worker_of_a_finished_job_waits_one_lease_and_one_window_not_for_ever() -> None:
    driven = DrivenWorker()
    driven.handle(s.Started(RequestId("r"), None), 0)
    patience_ms = driven.rules.lease_ms + driven.rules.rejoin_window_ms
    unreachable(driven, 1_000, FINISHED)
    assert [said.event for said in driven.effects_of(e.Log)] == ["job_is_finished"]
    assert FINISHED in driven.effects_of(e.Log)[0].text
    unreachable(driven, patience_ms - 1, FINISHED)
    assert driven.effects_of(e.Log) == []
    assert driven.effects_of(e.Exit) == []

    unreachable(driven, patience_ms, FINISHED)

    [exit_] = driven.effects_of(e.Exit)
    assert exit_.code == ""
    assert FINISHED in exit_.reason


def test_a_rank_that_is_done_ends_with_its_job_although_nobody_could_tell_it() -> None:
    """It waited until MS_TOPO_TIMEOUT for a scheduler that had ended, and failed then."""
    driven = DrivenWorker().training()
    unreachable(driven, 2_000, FINISHED)
    assert driven.effects_of(e.Exit) == [], "who is not done goes on"
    driven.handle(s.TrainingDone(RequestId("done"), Generation(1), 9))
    driven.handle(s.Disconnected("cut", 0.5), 2_100)
    unreachable(driven, 2_200, "")
    assert driven.effects_of(e.Exit) == [], "nothing is known"

    unreachable(driven, 2_300, FINISHED)

    assert [said.event for said in driven.effects_of(e.Log)] == ["job_is_finished"]
    assert driven.effects_of(e.Exit) == [e.Exit("", FINISHED)]
    unreachable(driven, 2_400, FINISHED)
    assert driven.effects_of(e.Exit) == [], "its script goes on"


@pytest.mark.parametrize(
    ("committed", "durable", "code"),
    [
        (9, None, ""),
        (8, None, "SCHEDULER_UNREACHABLE"),
        (9, 8, "SCHEDULER_UNREACHABLE"),
        (0, None, "SCHEDULER_UNREACHABLE"),
    ],
)
def test_a_rank_that_is_done_and_sees_no_store_ends_well_where_all_hold_its_last_step(
    committed: int, durable: int | None, code: str
) -> None:
    """On another host than the scheduler's: its recovery path is its own. It failed MS_TOPO_TIMEOUT later, behind a finished job."""
    driven = DrivenWorker(topology_timeout_ms=60_000).training()
    if committed:
        driven.receive(m.Committed(run=RunId(1), step=committed, durable_step=durable))
    driven.handle(s.TrainingDone(RequestId("done"), Generation(1), 9))
    driven.handle(s.Disconnected("cut", 0.5), 1_000)
    unreachable(driven, 60_000, "")
    assert driven.effects_of(e.Exit) == [], "a scheduler that is started again wants to hear that it is done"

    unreachable(driven, 61_000, "")

    [ended] = driven.effects_of(e.Exit)
    assert ended.code == code
    assert [said.event for said in driven.effects_of(e.Log)] == ([] if code else ["end_not_heard"])


def test_a_rank_that_trains_on_is_not_done_by_what_all_hold() -> None:
    driven = DrivenWorker(
        topology_timeout_ms=60_000, recovery_enabled=False, heartbeat_retry_timeout_ms=60_000
    ).training()
    driven.receive(m.Committed(run=RunId(1), step=9))
    driven.handle(s.Disconnected("cut", 0.5), 1_000)
    unreachable(driven, 61_000, "")
    assert [ended.code for ended in driven.effects_of(e.Exit)] == ["SCHEDULER_UNREACHABLE"]


def test_a_worker_whose_job_is_not_known_to_be_finished_waits_on() -> None:
    driven = DrivenWorker()
    driven.handle(s.Started(RequestId("r"), None), 0)
    unreachable(driven, 1_000_000, "")
    assert driven.effects_of(e.Exit) == []


def test_a_worker_that_was_in_is_not_sent_away_by_an_older_end() -> None:
    driven = DrivenWorker().admitted()
    driven.handle(s.Disconnected("cut", 0.5), 0)
    unreachable(driven, 1_000_000, FINISHED)
    assert driven.effects_of(e.Exit) == []


def test_the_next_run_s_scheduler_may_come_while_the_worker_waits() -> None:
    driven = DrivenWorker()
    driven.handle(s.Started(RequestId("r"), None), 0)
    unreachable(driven, 20_000, FINISHED)
    driven.handle(s.Connected(), 21_000)
    assert driven.sent(m.Register)


def test_a_process_whose_job_has_finished_says_no_more_that_it_waits_for_the_others() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 9))
    assert driven.fire(s.WorkerTimer.WAIT_NOTE, 5_000), "it waits for them"
    driven.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all 2 ranks are done at step 9"))
    assert driven.fire(s.WorkerTimer.WAIT_NOTE, 35_000) == []


@pytest.mark.parametrize("recovery_enabled", [False, True])
def test_the_exception_that_ended_the_job_is_known_also_where_another_rank_has_told_of_it_before(
    recovery_enabled: bool,
) -> None:
    """Without recovery what the exception broke for the others ends the job."""
    desk = Desk(Rules(worker_count=2, recovery_enabled=recovery_enabled))
    first, second = running_workers(desk)
    if recovery_enabled:
        second.done()
        first.done()
    else:
        broke = m.CollectiveFailed(generation=second.generation, step=3, reason="reset by worker_0")
        second.send(broke)
    assert desk.row(JobRecord)[0].state in {JobState.FAILED, JobState.FINISHED}
    first.raises()
    assert [event.reason for event in desk.events if event.kind is EventKind.NODE_FAILED] == ["ValueError: x"]
    assert first.hears(m.JobEnded)


def test_a_checkpoint_that_was_not_saved_is_counted_behind_the_end(desk: Desk) -> None:
    first, _ = finish(desk, gone=0)
    first.send(m.NotSaved(request_id=first.request(), step=100, reason="full"))
    assert EventKind.CHECKPOINT_NOT_SAVED in desk.kinds()
