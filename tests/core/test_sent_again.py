"""Messages that come twice, or from a process that is over, change nothing. Each was found by the simulation."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId
from recovery.core.records import CheckpointRecord, CheckpointState, JobRecord, JobState, RunRecord
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, running_workers


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def test_a_checkpoint_reported_again_stays_committed(desk: Desk) -> None:
    workers = running_workers(desk)
    held = [worker.save(20) for worker in workers]
    desk.restart()
    workers[0].register()
    workers[0].send(m.CheckpointReport(request_id=workers[0].request(), checkpoint=held[0]))

    assert {row.state for row in desk.row(CheckpointRecord)} == {CheckpointState.COMMITTED}


def test_a_bad_checkpoint_reported_again_stays_bad(desk: Desk) -> None:
    workers = running_workers(desk)
    held = [worker.save(20) for worker in workers]
    invalid = m.CheckpointInvalid(
        request_id=workers[0].request(), generation=workers[0].generation, step=20, path="p", reason="digest"
    )
    workers[0].send(invalid)
    workers[0].send(m.CheckpointReport(request_id=workers[0].request(), checkpoint=held[0]))

    assert next(row.state for row in desk.row(CheckpointRecord) if row.rank == 0) is CheckpointState.INVALID


def _finish(desk: Desk) -> list[Worker]:
    workers = running_workers(desk)
    for worker in workers:
        worker.done()
    for worker in workers:
        worker.die()
    assert desk.row(JobRecord)[0].state is JobState.FINISHED
    return workers


def test_a_process_of_the_run_that_ended_begins_no_other(desk: Desk) -> None:
    first, _ = _finish(desk)
    # It replaced itself and knows of no plan, only its token.
    first.generation = type(first.generation)(0)

    assert isinstance(first.register(), m.JobEnded)
    assert len(desk.row(RunRecord)) == 1


def test_a_process_of_another_job_is_refused_and_begins_no_run(desk: Desk) -> None:
    _finish(desk)
    stranger = Worker(desk, "worker_0", worker_count=3)
    answer = stranger.register()

    assert isinstance(answer, m.Refused)
    assert answer.code == "JOB_MISMATCH"
    assert len(desk.row(RunRecord)) == 1


def test_a_fresh_process_of_the_job_is_in_the_next_run_of_the_next_scheduler(desk: Desk) -> None:
    _finish(desk)
    desk.restart()

    assert isinstance(Worker(desk, "worker_0").register(), m.Admitted)
    assert len(desk.row(RunRecord)) == 2


def test_a_request_without_a_name_mutes_nobody(desk: Desk) -> None:
    """The decoder refuses it; the machine does not take a message that is no request for its repeat either."""
    first, second = running_workers(desk)
    first.send(
        m.CheckpointInvalid(
            request_id=RequestId(""),
            generation=Generation(0),
            step=1,
            path="p",
            reason="of a plan that is over",
        )
    )
    first.send(m.Heartbeat(sequence=7, generation=first.generation, step=5))
    assert first.hears(m.HeartbeatAck) == 1
    first.send(m.CollectiveFailed(generation=first.generation, step=5, reason="reset"))
    assert first.hears(m.Interrupt) > 0
    assert second.hears(m.Interrupt) > 0
