"""A rank that is connected and makes no step ends its generation, where a limit is set: no collective has to time out for it."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.policy.next_plan import SAME_ENDS_MAX
from recovery.core.records import NO_STEP, EventKind, JobRecord, JobState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, running_workers

LIMIT_MS, BEAT_MS = 20_000, 4_000


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2, step_timeout_ms=LIMIT_MS))


def beat(workers: list[Worker], *steps: int, times: int = 1) -> None:
    """Heartbeats of all, as often as they come, each at its step."""
    for _ in range(times):
        workers[0].desk.at(workers[0].desk.now + BEAT_MS)
        for worker, step in zip(workers, steps, strict=True):
            worker.send(m.Heartbeat(sequence=1, generation=worker.generation, step=step))


def reasons(desk: Desk) -> list[str]:
    return [one.reason for one in desk.events if one.kind is EventKind.GENERATION_INTERRUPTED]


def test_a_rank_that_hangs_while_its_heartbeats_come_ends_the_generation(desk: Desk) -> None:
    workers = running_workers(desk)
    for step in range(1, 20):
        beat(workers, step, 7)
        if reasons(desk):
            break

    assert reasons(desk) == [
        "worker_1 is connected, and has made no step behind step 7 for 20 s (MS_STEP_TIMEOUT)"
    ]
    [ended] = [one for one in desk.events if one.kind is EventKind.GENERATION_INTERRUPTED]
    assert ended.details == NO_STEP
    assert workers[1].hears(m.Interrupt)
    assert desk.now == LIMIT_MS + BEAT_MS


def test_a_job_whose_steps_follow_each_other_goes_on(desk: Desk) -> None:
    workers = running_workers(desk)
    for step in range(1, 20):
        beat(workers, step, step, times=4)

    assert reasons(desk) == []


def test_without_a_limit_a_step_takes_as_long_as_it_takes() -> None:
    desk = Desk(Rules(worker_count=2))
    beat(running_workers(desk), 7, 7, times=1_000)

    assert reasons(desk) == []


def test_nobody_is_judged_before_the_first_step_behind_the_last_or_outside_a_generation(desk: Desk) -> None:
    workers = running_workers(desk)
    beat(workers, 0, 0, times=100)
    workers[0].done(step=20)
    for step in range(20, 40):
        beat(workers, 20, step)
    standby = Worker(desk, "spare", standby=True)
    standby.register()
    old = Generation(workers[1].generation + 1)
    for step in range(40, 60):
        standby.send(m.Heartbeat(sequence=1, generation=workers[1].generation, step=1))
        workers[1].send(m.Heartbeat(sequence=1, generation=old, step=1))
        beat(workers, 20, step)

    assert reasons(desk) == []


def test_a_pause_of_either_process_counts_as_one_heartbeat(desk: Desk) -> None:
    workers = running_workers(desk)
    beat(workers, 7, 7, times=2)
    desk.now += 100 * LIMIT_MS
    for worker in workers:
        worker.send(m.Heartbeat(sequence=1, generation=worker.generation, step=7))

    assert reasons(desk) == []


def test_a_step_that_nobody_gets_beyond_ends_the_job_after_a_few_rollbacks(desk: Desk) -> None:
    workers = running_workers(desk)
    for _ in range(SAME_ENDS_MAX):
        beat(workers, 7, 7, times=6)
        for worker in workers:
            worker.ready()
        if desk.row(JobRecord)[0].state is JobState.RUNNING:
            for worker in workers:
                worker.follow()

    [job] = desk.row(JobRecord)
    assert job.state is JobState.FAILED
    assert "4 generations in a row, from step " in job.reason
    assert "MS_STEP_TIMEOUT" in job.reason
