"""A rank that nobody can take any more ends the job: once, and whatever else was lost with it."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import EventKind, JobState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, running_workers
from tests.core.standbys import answer, job, lose, reasons, standby

THREE = Rules(worker_count=3, standby_count=1)


def give_up(desk: Desk, name: str) -> None:
    """A launcher says that it does not start this one again."""
    exited = m.Exited(node_id=NodeId(name), pid=1, reason="exit code 1", gives_up=True)
    desk.say(desk.connect(), exited)


def two_given_up(desk: Desk) -> tuple[Worker, Worker]:
    """Of three ranks two are lost for good, and there is one standby; gives the rank that is left, and the standby."""
    workers = running_workers(desk, "worker_0", "worker_1", "worker_2")
    for worker in workers:
        worker.save(10)
    one = standby(desk)
    for worker in workers[1:]:
        worker.die()
        give_up(desk, worker.node_id)
    return workers[0], one


@pytest.mark.parametrize("how", ["leaves", "dies", "declines"])
def test_job_whose_ranks_nobody_can_take_ends_once(how: str) -> None:
    desk = Desk(THREE)
    left, waits = two_given_up(desk)
    if how == "leaves":
        waits.send(m.Leave(request_id=waits.request(), reason="SIGTERM"))
    elif how == "dies":
        lose(desk, waits)
    else:
        answer(waits, of="worker_1", rank=1)
    assert job(desk).state is JobState.FAILED
    assert left.hears(m.JobEnded) == 1
    assert len(reasons(desk, EventKind.JOB_FAILED)) == 1
    assert not desk.machine.state.offers
    assert waits.hears(m.Offer) == 1, "nothing is asked behind the end"
