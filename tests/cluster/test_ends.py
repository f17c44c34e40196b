"""How processes end: asked to, by a mistake in the user's own code, or because recovery is off."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from recovery import clock
from recovery.core.records import EventKind
from tests.cluster.small_cluster import LAST_STEP, PYTEST, PYTHON, SmallCluster

pytestmark = pytest.mark.cluster

STOPS = pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
WINDOW_S = 600.0
"""Longer than a test waits: who is let in did not have to wait for it."""
HELD = {"JOB_HELD_STEP": "40"}
WITHOUT_RECOVERY = {
    "MS_ENABLE_RECOVERY": "0",
    # Who is only silent is not taken for lost while a test waits.
    "MS_NODE_TIMEOUT": "900",
    "MS_HEARTBEAT_RETRY_TIMEOUT": "900",
    **HELD,
}
RAISES = "ZeroDivisionError: a mistake in the user's own code"


@STOPS
@pytest.mark.parametrize("command", [PYTHON, PYTEST], ids=["python", "pytest"])
def test_worker_that_is_asked_to_stop_leaves_and_may_return_at_once(
    tmp_path: Path, stop: signal.Signals, command: tuple[str, ...]
) -> None:
    with SmallCluster(tmp_path, window_s=WINDOW_S, command=command, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(12)

        cluster.signal("worker_1", stop)
        assert cluster.wait_exit("worker_1") == 128 + stop
        assert f"event=exit code={128 + stop} STOPPED: stopped by {stop.name}" in cluster.log("worker_1")
        assert "Traceback" not in cluster.log("worker_1")
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        [left] = cluster.events(EventKind.NODE_LEFT, "worker_1")
        assert left.event.reason == stop.name
        [interrupted] = cluster.events(EventKind.GENERATION_INTERRUPTED)
        assert interrupted.event.reason == f"worker_1 left: {stop.name}"
        assert not cluster.events(EventKind.NODE_LOST)
        [_, again] = cluster.events(EventKind.NODE_ADMITTED, "worker_1")
        assert (again.event.incarnation, again.event.rank) == (2, 1)
        cluster.check_result()


@STOPS
def test_worker_that_waits_for_a_scheduler_stops_when_asked(tmp_path: Path, stop: signal.Signals) -> None:
    with SmallCluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", cluster.port)) as nobody:
        nobody.settimeout(120)
        cluster.launch("worker_0")
        # It dials, and dials again.
        for _ in range(2):
            nobody.accept()[0].close()

        cluster.signal("worker_0", stop)

        assert cluster.wait_exit("worker_0") == 128 + stop
        assert f"event=exit code={128 + stop} STOPPED: stopped by {stop.name}" in cluster.log("worker_0")


def test_worker_that_is_asked_twice_still_leaves_with_the_first_exit_code(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, workers=1) as cluster:
        cluster.start()
        cluster.wait_step(5)
        # Its last report waits for its answer: time enough for a second signal.
        cluster.kill("sched")

        cluster.signal("worker_0", signal.SIGTERM)
        cluster.wait(lambda: clock.wall_ms() - cluster.last_step_ms() > 200, "end of its steps")
        cluster.signal("worker_0", signal.SIGINT)

        assert cluster.wait_exit("worker_0") == 128 + signal.SIGTERM
        assert "Traceback" not in cluster.log("worker_0")


@STOPS
def test_scheduler_that_is_asked_to_stop_ends_in_order_and_its_next_process_goes_on(
    tmp_path: Path, stop: signal.Signals
) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "10"}) as cluster:
        cluster.start()
        cluster.wait_step(8)
        workers = {name: cluster.processes[name] for name in cluster.names}

        cluster.signal("sched", stop)
        assert cluster.wait_exit("sched") == 128 + stop
        assert f"event=scheduler_stopped reason={stop.name}" in cluster.log("sched")
        assert "Traceback" not in cluster.log("sched")
        assert not (tmp_path / "recovery/scheduler.db-wal").exists(), "the store was not closed"
        cluster.go_on()
        cluster.wait_step(20)
        cluster.launch("sched")
        cluster.wait_end()

        assert {name: cluster.processes[name] for name in cluster.names} == workers
        assert cluster.generations() == {1}
        [restarted] = cluster.events(EventKind.SCHEDULER_RESTARTED)
        assert restarted.event.incarnation == 2
        cluster.check_result()


def test_mistake_in_the_users_code_is_printed_stored_and_corrected_by_a_relaunch(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment=HELD) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "raise@12"} if name == "worker_1" else {}))

        assert cluster.wait_exit("worker_1") == 1
        assert RAISES in cluster.log("worker_1").splitlines()
        assert "in _raise" in cluster.log("worker_1"), "no traceback"
        cluster.wait_event(EventKind.GENERATION_INTERRUPTED)
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert (failed.event.node_id, failed.event.step, failed.event.reason) == ("worker_1", 11, RAISES)
        assert "in _raise" in failed.event.details
        assert cluster.processes["worker_0"].poll() is None

        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_mistake_in_the_users_code_that_nobody_corrects_fails_the_job_by_its_name(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"MS_TOPO_TIMEOUT": "15"}) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "raise@12"} if name == "worker_1" else {}))

        assert cluster.wait_exit("worker_1") == 1
        for name in ("worker_0", "sched"):
            assert cluster.wait_exit(name) == 62
            assert (
                f"WAIT_TIMEOUT: 1 of 2 workers are here after 15 s (MS_TOPO_TIMEOUT); missing: worker_1; here: worker_0; first failure: worker_1 lost: its own code raised {RAISES}"
                in cluster.log(name)
            )
        [failed] = cluster.events(EventKind.JOB_FAILED)
        assert RAISES in failed.event.reason


@pytest.mark.parametrize("victim", ["worker_1", "worker_0", "server_0"])
def test_without_recovery_the_first_loss_ends_every_process_and_nobody_waits_for_a_lease(
    tmp_path: Path, victim: str
) -> None:
    with SmallCluster(tmp_path, servers=1, environment=WITHOUT_RECOVERY) as cluster:
        cluster.start()
        cluster.wait_step(8)

        cluster.kill(victim)
        others = [name for name in cluster.processes if name != victim]
        codes = {name: cluster.wait_exit(name) for name in others}

        assert codes == dict.fromkeys(others, 60)
        for name in others:
            assert f"JOB_FAILED: {victim} lost: connection closed" in cluster.log(name)
        assert not (tmp_path / "recovery").exists()


def test_without_recovery_a_mistake_in_the_users_code_ends_every_process(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment=WITHOUT_RECOVERY) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "raise@12"} if name == "worker_1" else {}))

        assert cluster.wait_exit("worker_1") == 1
        for name in ("worker_0", "sched"):
            assert cluster.wait_exit(name) == 60
            assert RAISES in cluster.log(name)
        assert not (tmp_path / "recovery").exists()


def test_without_recovery_a_whole_training_leaves_nothing_but_its_own_files(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"MS_ENABLE_RECOVERY": "0", "JOB_STEP_MS": "2"}) as cluster:
        cluster.start()
        cluster.wait_end()
        assert not (tmp_path / "recovery").exists()
        assert cluster.step() == LAST_STEP
        cluster.check_result()
