"""Processes that replace themselves by exec, and children that must not keep alive what their parent held."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import PYTEST, PYTHON, SmallCluster

pytestmark = pytest.mark.cluster

BOTH_WAYS = pytest.mark.parametrize("command", [PYTHON, PYTEST], ids=["python", "pytest"])
HANGS = {"MS_ABORT_TIMEOUT": "1"}


def incarnations(cluster: SmallCluster, node: str) -> list[tuple[int | None, int | None]]:
    """(incarnation, rank) of each admission and resumption that had a rank."""
    kinds = (EventKind.NODE_ADMITTED, EventKind.NODE_RESUMED)
    found = [stored.event for stored in cluster.events(node=node) if stored.event.kind in kinds]
    return [(event.incarnation, event.rank) for event in found if event.rank is not None]


@BOTH_WAYS
def test_script_that_calls_init_begins_again_by_exec_when_a_peer_is_lost(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    environment = {"JOB_FACE": "init", "JOB_HELD_STEP": "40"}
    with SmallCluster(tmp_path, command=command, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(12)
        before, process = cluster.seen("worker_0"), cluster.processes["worker_0"]

        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        after = cluster.seen("worker_0")
        assert (before["generation"], after["generation"]) == (1, 2)
        assert after["entries"] == 1, "the function was entered again instead of the script"
        assert after["pid"] == before["pid"] == process.pid
        assert after["argv"][1:] == before["argv"][1:]
        assert after["incarnation"] == before["incarnation"] == 1
        assert "MS_RESUME_TOKEN" not in after["environment"]
        assert incarnations(cluster, "worker_0") == [(1, 0)]
        assert incarnations(cluster, "worker_1") == [(2, 1)]
        cluster.check_result()


@BOTH_WAYS
def test_script_that_calls_init_and_makes_a_mistake_is_not_taken_for_done(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with SmallCluster(tmp_path, command=command, environment={"JOB_FACE": "init"}) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "raise-unheard@12"} if name == "worker_1" else {}))

        assert cluster.wait_exit("worker_1") == 1
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert (failed.event.node_id, failed.event.step) == ("worker_1", 11)
        assert "in _raise" in failed.event.details
        cluster.launch("worker_1")
        cluster.wait_end()
        cluster.check_result()


def test_script_that_calls_init_and_is_done_rolls_back_with_a_peer_that_is_not(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_FACE": "init", "MS_SCHED_HOST": "localhost"}) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_HELD_STEP": "50"} if name == "worker_1" else {"JOB_STEP_MS": "2"}))
        cluster.wait((tmp_path / "result_0").exists, "end of the faster rank")
        first = cluster.processes["worker_0"]
        cluster.kill_and_relaunch("sched")
        for name in cluster.names:
            cluster.wait_event(EventKind.NODE_RESUMED, name)

        cluster.kill_and_relaunch("worker_1")
        cluster.wait_end()

        assert cluster.processes["worker_0"] is first
        assert cluster.seen("worker_0")["generation"] == 2
        cluster.check_result()


@BOTH_WAYS
@pytest.mark.cold_start(reason="the command line that is started again by exec")
@pytest.mark.parametrize("deeds", ["hang@15", "chdir@3 hang@15"], ids=["", "elsewhere"])
def test_main_thread_that_nobody_can_wake_is_replaced_and_leaves_no_socket_behind(
    tmp_path: Path, command: tuple[str, ...], deeds: str
) -> None:
    with SmallCluster(tmp_path, command=command, environment=HANGS) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": deeds} if name == "worker_0" else {}))
        cluster.wait((tmp_path / "hangs_at").exists, "hanging rank")
        port = int((tmp_path / "hangs_at").read_text())
        process = cluster.processes["worker_0"]
        before = cluster.seen("worker_0")
        with socket.create_connection(("127.0.0.1", port), timeout=120) as peer:
            assert peer.recv(16) == b"I hang"
            cluster.wait_step(30)
            connections = sockets_of(process.pid)

            cluster.kill_and_relaunch("worker_1")
            assert peer.recv(16) == b"", "the connection of the replaced program is still open"
        cluster.wait_step(16, generation=2)
        assert not connections & sockets_of(process.pid)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        cluster.wait_end()

        after = cluster.seen("worker_0")
        assert after["pid"] == before["pid"] == process.pid
        assert after["argv"][1:] == before["argv"][1:]
        assert (after["incarnation"], after["generation"], after["entries"]) == (1, 2, 1)
        assert "event=process_replaced" in cluster.log("worker_0")
        assert incarnations(cluster, "worker_0") == [(1, 0)]
        cluster.check_result()


def sockets_of(pid: int) -> set[tuple[object, ...]]:
    """Ends of every TCP socket that a process holds."""
    return {(one.laddr, one.raddr) for one in psutil.Process(pid).net_connections("tcp")}


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
@pytest.mark.parametrize("path", ["recovery", "link/recovery"])
def test_child_of_a_killed_worker_keeps_neither_its_connection_nor_its_store(
    tmp_path: Path, how: str, path: str
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    environment = {"MS_RECOVERY_PATH": path, "JOB_HELD_STEP": "30"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": f"{how}@6"} if name == "worker_1" else {}))
        cluster.wait((tmp_path / "child").exists, "child")
        child = psutil.Process(int((tmp_path / "child").read_text()))
        cluster.wait_step(12)
        # A fork closes them when it first runs, which its parent does not wait for.
        cluster.wait(lambda: not sockets_of(child.pid), "child without a socket")

        killed = cluster.processes["worker_1"].pid
        cluster.kill("worker_1")
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        [suspected] = cluster.events(EventKind.NODE_SUSPECTED, "worker_1")
        [lost] = cluster.events(EventKind.NODE_LOST, "worker_1")
        assert suspected.event.reason == "connection closed", "its child held the connection"
        assert lost.event.reason in ("connection closed", f"its process (pid {killed}) has ended")
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        assert child.is_running(), "it held nothing because it was gone"
        assert child.status() != psutil.STATUS_ZOMBIE
        assert "STORE_LOCKED" not in cluster.log("worker_1")
        cluster.check_result()
