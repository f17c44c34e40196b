"""A launcher has asked for the end of the job: what ends behind that has not failed."""

from __future__ import annotations

import pytest

from recovery.core.barrier_messages import NotHandedOver
from recovery.core.records import EventKind, GenerationRecord, JobRecord
from recovery.core.scheduler.barrier import BarrierState
from tests.core.desk import Desk
from tests.core.drained import RULES
from tests.core.test_job_stop import GRACE_MS, Stopped

STOPPED = "the job was stopped (the launcher at 10.0.0.1: SIGTERM)"


def ended(desk: Desk) -> tuple[str, str, str]:
    """Why the generation ended: by its event, its row and the job's."""
    [event] = [one for one in desk.events if one.kind is EventKind.GENERATION_INTERRUPTED]
    return event.reason, desk.row(GenerationRecord)[-1].ended, desk.row(JobRecord)[0].reason


@pytest.mark.parametrize("is_saved", [True, False])
def test_processes_that_end_behind_the_end_of_the_job_have_not_failed(is_saved: bool) -> None:
    stopped = Stopped()
    stopped.stop()
    if is_saved:
        step = stopped.until(BarrierState.SAVING)
        for worker in stopped.workers:
            worker.save(step)
    else:
        stopped.desk.at(GRACE_MS)
    for worker in stopped.workers:
        stopped.depart(worker)
        assert worker.last(NotHandedOver).job_ends
        worker.die()
    stopped.desk.at(stopped.desk.now + RULES.reconnect_grace_ms)
    assert ended(stopped.desk) == (STOPPED, STOPPED, STOPPED)


def test_a_death_before_the_end_of_the_job_and_one_long_behind_it_are_failures() -> None:
    stopped = Stopped()
    stopped.zero.die()
    stopped.stop()
    stopped.desk.at(RULES.reconnect_grace_ms)
    assert ended(stopped.desk)[0] == "worker_0 lost: connection closed"
    stopped = Stopped()
    stopped.stop()
    step = stopped.until(BarrierState.SAVING)
    for worker in stopped.workers:
        worker.save(step)
    for _ in range(4):
        for worker in stopped.workers:
            worker.beat()
        stopped.desk.at(stopped.desk.now + 10_000)
    stopped.zero.die()
    stopped.desk.at(stopped.desk.now + RULES.reconnect_grace_ms)
    assert ended(stopped.desk)[0] == "worker_0 lost: connection closed"
