"""`recovery msrun` on two hosts, as the documents start it: one command on each, node_rank 0 and 1. Needs root."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.faults.hosts import Host, host

__all__ = ["host"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SECOND = "second"


def start_first(cluster: LaunchedCluster, host: Host) -> None:
    cluster.start("--local_worker_num=2", f"--master_addr={host.scheduler}", "--node_rank=0")


def start_second(cluster: LaunchedCluster, host: Host) -> None:
    cluster.start(
        "--local_worker_num=2",
        f"--master_addr={host.scheduler}",
        "--node_rank=1",
        "--log_dir=logs_of_second",
        name=SECOND,
        prefix=host.prefix,
    )


def test_a_host_that_dies_and_comes_back_takes_its_ranks(tmp_path: Path, host: Host) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment={"JOB_STEP_MS": "50"}) as cluster:
        start_first(cluster, host)
        start_second(cluster, host)
        cluster.wait_step(12)
        before = {name: cluster.pid_of(name) for name in ("sched", "0", "1")}

        cluster.kill(SECOND)
        cluster.wait_event(EventKind.NODE_LOST, "3")
        start_second(cluster, host)

        cluster.wait_step(20, generation=2)
        assert {name: cluster.pid_of(name) for name in before} == before, "the first host was restarted"
        assert cluster.wait_exit(LAUNCHER, 60) == cluster.wait_exit(SECOND, 60) == 0
        cluster.check_result()
        for node in ("2", "3"):
            admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, node)]
            assert [(event.incarnation, event.rank) for event in admitted[1:]] == [(2, int(node))]
        assert not list((tmp_path / "logs_of_second").glob("scheduler.log"))


def test_without_recovery_a_failure_on_one_host_ends_both(tmp_path: Path, host: Host) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment={"MS_ENABLE_RECOVERY": "0"}) as cluster:
        start_first(cluster, host)
        start_second(cluster, host)
        cluster.wait_step(6)
        cluster.kill_node("2")
        assert cluster.wait_exit(SECOND, 5) == 137
        assert cluster.wait_exit(LAUNCHER, 5) == 60
        cluster.wait(lambda: not cluster.living(), "end of all", 5)
