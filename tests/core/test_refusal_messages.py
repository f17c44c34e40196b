"""What a refusal and a missed deadline say must be true of the moment, and of the process that prints it."""

from __future__ import annotations

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker, running_workers
from tests.core.driven_worker import DrivenWorker, refused


def ended(desk: Desk) -> str:
    assert desk.exit is not None
    assert desk.exit.code == "WAIT_TIMEOUT"
    return desk.exit.reason


def server(desk: Desk, name: str) -> Worker:
    one = Worker(desk, name, role=m.Role.SERVER)
    assert isinstance(one.register(), m.Admitted)
    return one


# --- WAIT_TIMEOUT -------------------------------------------------------------------------------------------------------


def test_a_missed_deadline_names_the_server_that_never_came() -> None:
    desk = Desk(Rules(worker_count=1, server_count=2, topology_timeout_ms=3_000))
    server(desk, "server_0")
    worker = Worker(desk, "worker_0")
    worker.register()
    worker.ready()

    desk.at(10_000)

    assert ended(desk) == (
        "1 of 1 workers and 1 of 2 servers are here after 3 s (MS_TOPO_TIMEOUT); missing: 1 server that never registered; "
        "here: worker_0, server_0"
    )


def test_a_missed_deadline_names_the_server_that_is_not_connected() -> None:
    desk = Desk(Rules(worker_count=1, server_count=1, topology_timeout_ms=3_000))
    worker = Worker(desk, "worker_0")
    worker.register()
    desk.at(2_900)
    server(desk, "server_0").die()

    desk.at(10_000)

    assert "missing: server_0;" in ended(desk)


def test_a_missed_deadline_names_who_is_here_and_not_ready() -> None:
    desk = Desk(Rules(worker_count=2, topology_timeout_ms=3_000))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    first.register()
    second.register()
    first.ready()

    desk.at(10_000)

    assert ended(desk) == (
        "2 of 2 workers are here after 3 s (MS_TOPO_TIMEOUT); missing: none; "
        "here and not ready, still looking at its checkpoints: worker_1; here: worker_0, worker_1"
    )


def test_servers_are_no_matter_once_the_world_has_formed() -> None:
    desk = Desk(Rules(worker_count=2, server_count=1, topology_timeout_ms=3_000))
    server(desk, "server_0").beat()
    first, second = running_workers(desk)
    second.die()
    desk.at(600)
    first.ready()

    desk.at(10_000)

    assert ended(desk).startswith("1 of 2 workers are here after 3 s (MS_TOPO_TIMEOUT); missing: worker_1;")


# --- NODE_ALIVE ---------------------------------------------------------------------------------------------------------


def reason_of(answer: m.FromScheduler) -> str:
    assert isinstance(answer, m.Refused), answer
    return answer.reason


def test_after_a_full_relaunch_the_refusal_says_that_nobody_is_connected_and_until_when_that_is_believed() -> (
    None
):
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)
    desk.restart()
    desk.at(desk.now + 4_000)

    said = reason_of(Worker(desk, "worker_0").register())

    assert "is not connected" in said
    assert "for another 26.0 s" in said
    assert "MS_NODE_TIMEOUT=30" in said
    assert "its own MS_NODE_ID" not in said


def test_within_the_reconnect_grace_the_refusal_names_the_grace() -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    first.die()
    desk.at(desk.now + 200)

    said = reason_of(Worker(desk, "worker_0").register())

    assert "for another 0.3 s" in said
    assert "MS_RECONNECT_GRACE=0.5" in said


def test_beside_a_connected_holder_the_refusal_asks_for_an_id_of_its_own() -> None:
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)

    said = reason_of(Worker(desk, "worker_0").register())

    assert "connected" in said
    assert "its own MS_NODE_ID" in said


# --- what the refused process itself does --------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["REJOIN_WINDOW", "NODE_ALIVE"])
def test_only_a_process_that_waits_says_that_it_waits(code: str) -> None:
    waiting, failing = (
        DrivenWorker(rejoin_wait=True).registering(),
        DrivenWorker(rejoin_wait=False).registering(),
    )
    for driven in (waiting, failing):
        driven.receive(refused(code, 17_600))

    [said] = waiting.effects_of(e.Log)
    assert "asks again in 17.6 s" in said.text
    assert "MS_REJOIN=fail" in said.text
    [exit_] = failing.effects_of(e.Exit)
    assert "asks again" not in exit_.reason
    assert exit_.reason.endswith("MS_REJOIN=fail: this process does not wait. With MS_REJOIN=wait it would.")


def test_a_refusal_that_waiting_cannot_change_speaks_of_no_wait() -> None:
    driven = DrivenWorker(rejoin_wait=False).registering()
    driven.receive(refused("WORLD_FULL", None))
    [exit_] = driven.effects_of(e.Exit)
    assert "MS_REJOIN" not in exit_.reason


def test_the_scheduler_does_not_speak_for_the_process_that_it_refuses() -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    first.die()
    desk.at(desk.now + 1_000)
    said = reason_of(Worker(desk, "worker_0").register())
    assert "may return in" in said
    assert "waits" not in said
