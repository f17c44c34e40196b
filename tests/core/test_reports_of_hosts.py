"""A launcher speaks for the processes of its own host, and for no other."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.records import NodeRecord, NodeState
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, begin, running_workers

THERE = m.ProcessIdentity(boot_id="boot", pid_namespace=1, start_ticks=7)
ELSEWHERE = "10.0.0.9"


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def report(desk: Desk, one: Worker, *, peer: str, process: m.ProcessIdentity | None = None) -> None:
    connection = desk.connect()
    exited = m.Exited(node_id=one.node_id, pid=1, reason="killed", gives_up=True, process=process)
    desk.say(connection, exited, peer=peer)
    assert connection in desk.closed


def state_of(desk: Desk, one: Worker) -> NodeState:
    return next(row.state for row in desk.row(NodeRecord) if row.node_id == one.node_id)


def test_a_launcher_of_another_host_ends_nobody(desk: Desk) -> None:
    first, _ = running_workers(desk)
    first.die()
    report(desk, first, peer=ELSEWHERE)
    assert state_of(desk, first) is NodeState.SUSPECT
    assert not desk.machine.state.job_ended
    report(desk, first, peer="10.0.0.1")
    assert state_of(desk, first) is NodeState.LOST


def test_a_launcher_of_another_host_does_not_leave_a_word_for_later(desk: Desk) -> None:
    first, _ = running_workers(desk)
    report(desk, first, peer=ELSEWHERE)
    first.die()
    assert state_of(desk, first) is NodeState.SUSPECT


@pytest.mark.parametrize("host", ["", "10.1.0.1"])
def test_the_host_is_known_by_where_the_node_came_from_or_says_to_be(desk: Desk, host: str) -> None:
    workers = [Worker(desk, f"worker_{index}", host=host) for index in range(2)]
    begin(workers)
    workers[0].die()
    report(desk, workers[0], peer=ELSEWHERE)
    assert not desk.machine.state.job_ended
    report(desk, workers[0], peer=host or "10.0.0.1")
    assert desk.machine.state.job_ended


def test_a_launcher_of_another_host_proves_nothing_by_naming_the_very_process(desk: Desk) -> None:
    """It is told which process that is; and a copy of a running machine has its boot and its process ids."""
    workers = [Worker(desk, f"worker_{index}", process=THERE) for index in range(2)]
    begin(workers)
    workers[0].die()
    report(desk, workers[0], peer=ELSEWHERE, process=THERE)
    assert state_of(desk, workers[0]) is NodeState.SUSPECT
    assert not desk.machine.state.nodes[workers[0].node_id].proven_dead
    report(desk, workers[0], peer="10.0.0.1", process=THERE)
    assert desk.machine.state.job_ended


def test_a_scheduler_that_started_again_knows_the_host_by_what_is_stored(desk: Desk) -> None:
    first, _ = running_workers(desk)
    desk.restart()
    report(desk, first, peer=ELSEWHERE)
    assert not desk.machine.state.nodes[first.node_id].given_up
    report(desk, first, peer="10.0.0.1")
    assert desk.machine.state.nodes[first.node_id].given_up
