"""A launcher saw a process end: the scheduler knows why at once, and a wrong report takes nobody's place away."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.records import EventKind, NodeRecord, NodeState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, running_workers

KILLED = "killed by SIGKILL"


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def see_exit(desk: Desk, node_id: str = "worker_0", *, pid: int = 1, reason: str = KILLED) -> None:
    connection = desk.connect()
    assert desk.say(connection, m.Exited(node_id=NodeId(node_id), pid=pid, reason=reason)) == []
    assert connection in desk.closed, "it has nothing more to say"


def state(desk: Desk, node_id: str = "worker_0") -> NodeState:
    return next(row.state for row in desk.row(NodeRecord) if row.node_id == node_id)


def losses(desk: Desk) -> list[str]:
    return [event.reason for event in desk.events if event.kind is EventKind.NODE_LOST]


def test_who_disconnected_and_was_seen_to_end_is_lost_without_grace(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.die()
    assert state(desk) is NodeState.SUSPECT
    see_exit(desk)
    assert losses(desk) == [KILLED]
    assert second.last(m.Interrupt).reason == f"worker_0 lost: {KILLED}"


def test_who_was_seen_to_end_before_its_socket_closed_is_lost_when_it_does(desk: Desk) -> None:
    first, second = running_workers(desk)
    see_exit(desk)
    assert state(desk) is NodeState.LIVE
    assert not second.hears(m.Interrupt)
    first.die()
    assert losses(desk) == [KILLED]


def test_who_speaks_on_is_not_lost_by_a_wrong_report(desk: Desk) -> None:
    workers = running_workers(desk)
    see_exit(desk)
    for now in range(10_000, 50_000, 10_000):
        desk.at(now)
        for worker in workers:
            worker.beat()
    assert state(desk) is NodeState.LIVE
    assert losses(desk) == []


@pytest.mark.parametrize(("node_id", "pid"), [("worker_0", 2), ("worker_7", 1)])
def test_a_report_about_another_process_means_nothing(desk: Desk, node_id: str, pid: int) -> None:
    first, _ = running_workers(desk)
    first.die()
    see_exit(desk, node_id, pid=pid)
    assert state(desk) is NodeState.SUSPECT


def test_what_the_process_said_itself_stays_the_reason(desk: Desk) -> None:
    first, _ = running_workers(desk)
    first.raises()
    see_exit(desk, reason="exit code 1")
    first.die()
    assert losses(desk) == ["its own code raised ValueError: x"]


def test_an_ended_job_has_no_losses(desk: Desk) -> None:
    for worker in running_workers(desk):
        worker.done()
    see_exit(desk, reason="exit code 0")
    assert losses(desk) == []


def test_a_node_may_not_say_it_of_another(desk: Desk) -> None:
    first, second = running_workers(desk)
    second.die()
    first.send(m.Exited(node_id=second.node_id, pid=1, reason=KILLED))
    assert losses(desk) == []
    assert first.connection in desk.closed


# --- who is not started again ----------------------------------------------------------------------------------------------


def give_up(desk: Desk, node_id: str, *, pid: int = 1, reason: str = KILLED) -> None:
    desk.say(desk.connect(), m.Exited(node_id=NodeId(node_id), pid=pid, reason=reason, gives_up=True))


def test_a_launcher_that_gives_up_ends_the_job_for_everybody(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.die()
    give_up(desk, "worker_0")
    ended = second.last(m.JobEnded)
    assert ended.outcome is m.JobOutcome.JOB_FAILED
    assert ended.reason == f"worker_0: {KILLED}; it is not started again"
    assert losses(desk) == [KILLED]


def test_giving_up_a_worker_whose_connection_is_open_waits_for_its_end(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.raises()
    give_up(desk, "worker_0", reason="exit code 1")
    assert not second.hears(m.JobEnded)
    first.die()
    assert (
        second.last(m.JobEnded).reason
        == "worker_0: its own code raised ValueError: x; it is not started again"
    )


def test_giving_up_a_worker_that_is_lost_already_ends_the_job(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.die()
    desk.at(600)
    see_exit(desk)
    assert not second.hears(m.JobEnded)
    give_up(desk, "worker_0")
    assert second.last(m.JobEnded).reason == f"worker_0: {KILLED}; it is not started again"


def test_giving_up_a_worker_that_never_came_ends_the_job_while_it_forms(desk: Desk) -> None:
    second = Worker(desk, "worker_1")
    second.register()
    give_up(desk, "worker_0", reason="exit code 1")
    assert second.last(m.JobEnded).reason == "worker_0: exit code 1; it is not started again"


@pytest.mark.parametrize(("node_id", "pid"), [("worker_0", 2), ("worker_7", 1)])
def test_giving_up_another_process_means_nothing(desk: Desk, node_id: str, pid: int) -> None:
    workers = running_workers(desk)
    give_up(desk, node_id, pid=pid)
    assert not any(worker.hears(m.JobEnded) for worker in workers)


def test_without_recovery_the_loss_has_ended_the_job_already() -> None:
    desk = Desk(Rules(worker_count=2, recovery_enabled=False))
    first, second = running_workers(desk)
    first.die()
    give_up(desk, "worker_0")
    assert second.last(m.JobEnded).reason == f"worker_0 lost: {KILLED}"
    assert second.hears(m.JobEnded) == 1
