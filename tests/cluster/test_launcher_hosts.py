"""`recovery msrun` on two hosts, as the documents start it: one command on each, node_rank 0 and 1. Needs root."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.policy.ranks import first_id
from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.secured import with_tls
from tests.cluster.small_cluster import SCRIPT
from tests.faults.hosts import BOTH, Host, host, hosts

__all__ = ["host", "hosts"]

pytestmark = pytest.mark.cluster

SECOND = "second"
HELD = {"JOB_HELD_STEP": "40"}


def start_first(cluster: LaunchedCluster, host: Host, *flags: str) -> None:
    cluster.start("--local_worker_num=2", f"--master_addr={host.scheduler}", "--node_rank=0", *flags)


def start_second(cluster: LaunchedCluster, host: Host, *flags: str) -> None:
    cluster.start(
        "--local_worker_num=2",
        f"--master_addr={host.scheduler}",
        "--node_rank=1",
        *flags,
        "--log_dir=logs_of_second",
        name=SECOND,
        prefix=host.prefix,
    )


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_host_that_dies_and_comes_back_takes_its_ranks(tmp_path: Path, host: Host, *, tls: bool) -> None:
    # A command on the first host asks at 127.0.0.1 too, and workers fetch checkpoints from those of the other host.
    secured = with_tls(tmp_path, host.scheduler, "127.0.0.1", host.address) if tls else {}
    with LaunchedCluster(tmp_path, workers=4, environment={**HELD, **secured}) as cluster:
        start_first(cluster, host)
        start_second(cluster, host)
        cluster.wait_step(12)
        before = {name: cluster.pid_of(name) for name in ("sched", "0", "1")}

        cluster.kill(SECOND)
        cluster.wait_event(EventKind.NODE_LOST, "3")
        start_second(cluster, host)

        cluster.wait_step(20, generation=2)
        assert {name: cluster.pid_of(name) for name in before} == before, "the first host was restarted"
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit(SECOND) == 0
        cluster.check_result()
        logs = "".join(path.read_text() for path in tmp_path.glob("logs*/*.log"))
        assert "TLS_HOST_MISMATCH" not in logs, "the second host cannot be asked for its checkpoints"
        # Under a fresh id where the scheduler knew by then that the place's own was lost.
        ranks = {
            first_id(str(stored.event.node_id)): stored.event.rank
            for stored in cluster.events()
            if stored.event.kind in (EventKind.NODE_ADMITTED, EventKind.RANK_TAKEN_OVER)
            and stored.event.rank is not None
        }
        assert ranks == {"2": 2, "3": 3}
        assert not list((tmp_path / "logs_of_second").glob("scheduler.log"))


def test_without_recovery_a_failure_on_one_host_ends_both(tmp_path: Path, host: Host) -> None:
    # Nobody who is only silent is taken for lost while this test waits: it is the closed connection that tells.
    silent = {"MS_NODE_TIMEOUT": "900", "MS_HEARTBEAT_RETRY_TIMEOUT": "900"}
    environment = {"MS_ENABLE_RECOVERY": "0", **silent, **HELD}
    with LaunchedCluster(tmp_path, workers=4, environment=environment) as cluster:
        start_first(cluster, host)
        start_second(cluster, host)
        cluster.wait_step(6)
        cluster.kill_node("2")
        assert cluster.wait_exit(SECOND) == 137
        assert cluster.wait_exit(LAUNCHER) == 60
        cluster.wait(lambda: not cluster.living(), "end of all")
        printed = cluster.log(LAUNCHER).partition("the job failed")[2]
        assert "2 lost: killed by SIGKILL" in printed, "the cause is named on the other host too"


def test_a_host_that_is_cut_off_and_back_loses_no_process(tmp_path: Path, host: Host) -> None:
    environment = {"MS_NODE_TIMEOUT": "6", **HELD}
    with LaunchedCluster(tmp_path, workers=4, environment=environment) as cluster:
        start_first(cluster, host)
        start_second(cluster, host)
        cluster.wait_step(12)
        host.cut(*BOTH)
        cluster.wait_event(EventKind.NODE_LOST, "3")
        host.reconnect()
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit(SECOND) == 0, cluster.tails()
        cluster.check_result()
        assert not list(tmp_path.glob("logs*/incident-*")), "nothing died"
        assert {stored.event.incarnation for stored in cluster.events(EventKind.NODE_ADMITTED)} == {1}


@pytest.mark.slow
def test_a_host_that_is_lost_for_good_fails_the_job_by_name(tmp_path: Path, host: Host) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment=HELD) as cluster:
        # Time enough for the second host's processes to start on a busy machine: the scheduler waits from its own start on.
        start_first(cluster, host, "--cluster_time_out=30")
        start_second(cluster, host, "--cluster_time_out=30")
        cluster.wait_step(12)
        cluster.kill(SECOND)

        assert cluster.wait_exit(LAUNCHER) == ROWS["WAIT_TIMEOUT"].exit_code
        printed = cluster.log(LAUNCHER).partition("the job failed")[2]
        assert "2 of 4 workers are here after 30 s (MS_TOPO_TIMEOUT); missing: 2, 3; here: 0, 1" in printed
        cluster.wait(lambda: not cluster.living(), "end of all")


def test_three_hosts_of_one_name_get_their_ranks_from_the_scheduler(
    tmp_path: Path, hosts: tuple[Host, ...]
) -> None:
    """All have this machine's host name, as copied machines may have: their addresses tell them apart."""
    address = f"--master_addr={hosts[0].scheduler}"
    with LaunchedCluster(tmp_path, workers=3, environment=HELD) as cluster:
        cluster.start("--local_worker_num=1", address)
        for number, there in enumerate(hosts):
            cluster.start("--local_worker_num=1", address, name=f"host_{number}", prefix=there.prefix)
        cluster.wait_step(12)
        third = cluster.processes["host_1"]
        cluster.kill("host_1")
        cluster.wait_event(EventKind.NODE_LOST)
        cluster.start("--local_worker_num=1", address, name="host_1", prefix=hosts[1].prefix)
        cluster.go_on()

        for name in (LAUNCHER, "host_0", "host_1"):
            assert cluster.wait_exit(name) == 0, cluster.tails()
        assert third.poll() is not None
        cluster.check_result()
        logs = [path.read_text() for path in cluster.logs.glob("**/worker_0.log")]
        assert sorted(log.count("start 1 ") for log in logs) == [1, 1, 2], "all share one directory"
        assert (
            len({first_id(str(stored.event.node_id)) for stored in cluster.events(EventKind.NODE_ADMITTED)})
            == 3
        )


def test_a_host_with_another_script_is_named_at_the_start_on_its_console_and_in_the_events(
    tmp_path: Path, host: Host
) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment=HELD) as cluster:
        (tmp_path / "other.py").write_text(
            f"{(tmp_path / SCRIPT).read_text()}\n# With another learning rate.\n"
        )
        start_first(cluster, host)
        place = ("--local_worker_num=2", f"--master_addr={host.scheduler}", "--node_rank=1")
        cluster.start(*place, "--log_dir=logs_of_second", name=SECOND, prefix=host.prefix, script="other.py")
        cluster.wait_event(EventKind.PROGRAM_DIFFERS)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit(SECOND) == 0
        [said] = cluster.events(EventKind.PROGRAM_DIFFERS)
        scripts = {f"{SCRIPT} (", "other.py ("}
        assert all(script in said.event.reason for script in scripts)
        assert host.address in said.event.reason
        consoles = cluster.log(LAUNCHER) + cluster.log(SECOND)
        assert consoles.count(f"WARNING role=worker event=program_differs {said.event.reason}") == 1
