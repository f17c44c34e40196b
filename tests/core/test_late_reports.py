"""A launcher's report that comes when its process's id has its next process, or when the job has ended: nothing follows, and it is written down."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Incarnation, NodeId
from recovery.core.records import EventKind, IncarnationRecord, JobRecord, JobState, NodeRecord, NodeState
from recovery.core.rules import Rules
from recovery.core.scheduler.stimuli import ProcessGone
from tests.core.desk import Desk, Worker, begin

KILLED = "killed by SIGKILL"
HERE = m.ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=100)
NEXT = m.ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=101)


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2, rejoin_on_proof=True))


@pytest.fixture
def workers(desk: Desk) -> tuple[Worker, Worker]:
    """Of a job that runs."""
    workers = Worker(desk, "worker_0", process=HERE), Worker(desk, "worker_1", process=HERE)
    begin(workers)
    return workers


def report(desk: Desk, *, found: bool = False, pid: int = 1) -> None:
    reason = "its process (pid 1) has ended" if found else KILLED
    exited = m.Exited(node_id=NodeId("worker_0"), pid=pid, reason=reason, process=HERE, found=found)
    desk.say(desk.connect(), exited)


def start_again(desk: Desk) -> Worker:
    again = Worker(desk, "worker_0", pid=2, process=NEXT)
    assert isinstance(again.register(), m.Admitted)
    return again


def told(desk: Desk) -> list[tuple[int | None, str]]:
    ended = [event for event in desk.events if event.kind is EventKind.PROCESS_ENDED]
    return [(event.incarnation, event.reason) for event in ended]


def ends(desk: Desk) -> list[str]:
    return [row.ended for row in desk.row(IncarnationRecord) if row.node_id == "worker_0"]


def test_how_a_process_ended_is_written_down_when_its_id_has_its_next_process(
    desk: Desk, workers: tuple[Worker, Worker]
) -> None:
    workers[0].die()
    desk.handle(ProcessGone(NodeId("worker_0"), Incarnation(1)))
    start_again(desk)
    report(desk, pid=7)
    assert told(desk) == []
    report(desk)
    report(desk)
    assert told(desk) == [(1, KILLED)], "once"
    assert ends(desk) == [KILLED, ""]
    assert {row.state for row in desk.row(NodeRecord)} == {NodeState.LIVE}


def test_how_a_process_ended_is_written_down_when_the_job_has_ended(
    desk: Desk, workers: tuple[Worker, Worker]
) -> None:
    workers[0].die()
    desk.handle(ProcessGone(NodeId("worker_0"), Incarnation(1)))
    world = start_again(desk), workers[1]
    for worker in world:
        worker.ready()
    for worker in world:
        worker.follow()
    for worker in world:
        worker.done()
    report(desk)
    assert told(desk) == [(1, KILLED)]


def test_how_a_process_ended_replaces_that_its_connection_had_closed(
    desk: Desk, workers: tuple[Worker, Worker]
) -> None:
    """Of another host than the scheduler's nothing else is known: the report comes when the grace is over."""
    workers[0].die()
    desk.at(desk.rules.reconnect_grace_ms + 1)
    assert desk.row(JobRecord)[0].reason == "worker_0 lost: connection closed"
    report(desk)
    report(desk)
    assert told(desk) == [(1, KILLED)]
    assert ends(desk) == [KILLED]
    assert desk.row(JobRecord)[0].reason == f"worker_0 lost: {KILLED}"


def test_how_a_process_ended_replaces_that_somebody_has_found_its_end(
    desk: Desk, workers: tuple[Worker, Worker]
) -> None:
    workers[0].die()
    report(desk, found=True)
    report(desk)
    report(desk, found=True)
    assert told(desk) == [(1, KILLED)]
    assert ends(desk) == [KILLED]


def test_that_an_end_was_found_says_nothing_of_who_is_connected_or_of_an_earlier_process(
    desk: Desk, workers: tuple[Worker, Worker]
) -> None:
    report(desk, found=True)
    workers[0].die()
    desk.handle(ProcessGone(NodeId("worker_0"), Incarnation(1)))
    start_again(desk)
    report(desk, found=True)
    assert told(desk) == []
    assert ends(desk) == ["its process (pid 1) has ended", ""]


def test_a_process_that_ended_beside_the_one_that_ended_the_job_is_explained_too(
    desk: Desk, workers: tuple[Worker, Worker]
) -> None:
    for worker in workers:
        worker.die()
    other = m.Exited(node_id=NodeId("worker_1"), pid=1, reason=KILLED, process=HERE, gives_up=True)
    desk.say(desk.connect(), other)
    assert desk.row(JobRecord)[0].state is JobState.FAILED
    report(desk)
    assert told(desk) == [(1, KILLED)]
    assert ends(desk) == [KILLED]
    desk.restart()
    desk.at(desk.now + desk.rules.lease_ms + desk.rules.reconnect_grace_ms + 1)
    assert ends(desk) == [KILLED]


@pytest.mark.parametrize("ended", [False, True])
def test_nothing_is_left_to_learn_of_a_process_whose_end_is_explained(
    desk: Desk, workers: tuple[Worker, Worker], ended: bool
) -> None:
    workers[0].die()
    report(desk)
    if ended:
        connection = desk.connect()
        desk.say(connection, m.Exited(node_id=NodeId("worker_0"), pid=1, reason=KILLED, gives_up=True))
    else:
        start_again(desk)
    report(desk)
    assert told(desk) == []
