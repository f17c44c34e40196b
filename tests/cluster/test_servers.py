"""Parameter servers: nodes beside the workers, with ranks of their own, that may come and go while workers train."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster


HELD = {"JOB_HELD_STEP": "40"}
"""The workers end no sooner than the test has seen what it is about."""


def incarnations(cluster: SmallCluster, server: str) -> list[tuple[int | None, int | None]]:
    """(incarnation, rank) of each admission."""
    admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, server)]
    return [(event.incarnation, event.rank) for event in admitted]


@pytest.mark.parametrize(("servers", "role"), [(1, "MS_SERVER"), (2, "MS_PSERVER")])
def test_servers_have_ranks_beside_the_workers_and_return_without_interrupting_them(
    tmp_path: Path, servers: int, role: str
) -> None:
    with SmallCluster(tmp_path, servers=servers, environment=HELD) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name)
        for name in cluster.servers:
            cluster.launch(name, MS_ROLE=role)
        cluster.wait_step(6)
        [assigned] = cluster.events(EventKind.RANKS_ASSIGNED)
        expected = {
            f"{name}={number}"
            for names in (cluster.names, cluster.servers)
            for number, name in enumerate(names)
        }
        assert set(assigned.event.details.split()) == expected
        workers = {name: cluster.processes[name].pid for name in cluster.names}

        cluster.kill(*cluster.servers)
        for name in cluster.servers:
            cluster.launch(name, MS_ROLE=role)
            cluster.wait_event(EventKind.NODE_ADMITTED, name, count=2)
        cluster.go_on()
        cluster.wait_end()

        for number, name in enumerate(cluster.servers):
            assert incarnations(cluster, name)[1:] == [(2, number)]
        assert workers == {name: cluster.processes[name].pid for name in cluster.names}
        assert cluster.generations() == {1}
        assert len(cluster.events(EventKind.PLAN_MADE)) == 1
        assert not cluster.events(EventKind.GENERATION_INTERRUPTED)
        cluster.check_result()


def test_job_waits_for_its_servers_before_it_begins(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, servers=2, environment={"JOB_STEP_MS": "2"}) as cluster:
        for name in (*cluster.names, "server_0", "sched"):
            cluster.launch(name)
        cluster.wait_event(EventKind.NODE_READY, count=3)
        assert not cluster.events(EventKind.PLAN_MADE)

        cluster.launch("server_1")
        cluster.wait_end()
        cluster.check_result()


def test_server_that_is_asked_to_stop_leaves_and_returns_without_interrupting_the_workers(
    tmp_path: Path,
) -> None:
    with SmallCluster(tmp_path, servers=1, window_s=600, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)

        cluster.signal("server_0", signal.SIGTERM)
        assert cluster.wait_exit("server_0") == 143
        cluster.launch("server_0")
        cluster.wait_event(EventKind.NODE_ADMITTED, "server_0", count=2)
        cluster.go_on()
        cluster.wait_end()

        assert incarnations(cluster, "server_0")[1:] == [(2, 0)]
        assert cluster.generations() == {1}
        cluster.check_result()


def test_workers_that_roll_back_and_a_new_scheduler_find_the_server_as_it_was(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, servers=1, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(12)

        cluster.kill_and_relaunch("worker_0")
        cluster.wait_step(20, generation=2)
        cluster.kill_and_relaunch("sched")
        cluster.wait_event(EventKind.NODE_RESUMED, "server_0")
        cluster.go_on()
        cluster.wait_end()

        assert incarnations(cluster, "server_0") == [(1, None)], (
            "the server was let in once, before it had a rank"
        )
        assert cluster.generations() == {1, 2}
        cluster.check_result()


def test_server_beyond_the_number_of_slots_is_turned_away(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, servers=1, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(3)
        extra = cluster.launch("server_9")
        del cluster.processes["server_9"]
        assert extra.wait(120) == 78
        assert "WORLD_FULL" in cluster.log("server_9")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_server_whose_script_begins_with_init_ends_with_exit_code_zero(tmp_path: Path) -> None:
    quick = {"JOB_STEP_MS": "2", "JOB_FACE": "init"}
    with SmallCluster(tmp_path, workers=1, servers=1, environment=quick) as cluster:
        cluster.start()
        cluster.wait_end()
        cluster.check_result()
