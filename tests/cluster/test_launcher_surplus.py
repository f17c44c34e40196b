"""`recovery msrun` on two hosts with more workers than the job has places. Needs root."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.faults.hosts import Host, joined_hosts

__all__ = ["joined_hosts"]

pytestmark = pytest.mark.cluster

SECOND = "second"
HELD = {"JOB_HELD_STEP": "40"}


@pytest.mark.parametrize("recovery_enabled", ["1", "0"])
def test_a_surplus_worker_ends_alone(
    tmp_path: Path, joined_hosts: tuple[Host, ...], recovery_enabled: str
) -> None:
    host = joined_hosts[0]
    environment = {**HELD, "MS_ENABLE_RECOVERY": recovery_enabled}
    with LaunchedCluster(tmp_path, workers=3, environment=environment) as cluster:
        cluster.start("--local_worker_num=2", f"--master_addr={host.scheduler}")
        there = (f"--master_addr={host.scheduler}", "--log_dir=logs_of_second")
        cluster.start("--local_worker_num=2", *there, name=SECOND, prefix=host.prefix)
        refused = f"exit code {ROWS['WORLD_FULL'].exit_code} (WORLD_FULL)"
        cluster.wait(lambda: refused in cluster.log(SECOND) + cluster.log(LAUNCHER), "its refusal")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit(SECOND) == 0, cluster.tails()
        cluster.check_result()
        printed = cluster.log(SECOND) + cluster.log(LAUNCHER)
        assert "the job's workers were complete without: worker_" in printed
        assert "the job failed" not in printed
        assert not list(tmp_path.glob("logs*/**/incident-*")), "it is no failure"
        if recovery_enabled == "1":
            assert not cluster.events(EventKind.NODE_LOST)


def test_a_host_of_which_nobody_was_needed_says_so(tmp_path: Path, joined_hosts: tuple[Host, ...]) -> None:
    """Its exit code is WORLD_FULL's: it has done nothing for the job."""
    address = f"--master_addr={joined_hosts[0].scheduler}"
    with LaunchedCluster(tmp_path, workers=2, environment=HELD) as cluster:
        cluster.start("--local_worker_num=1", address)
        for name, there in zip((SECOND, "third"), joined_hosts, strict=True):
            logs = f"--log_dir=logs_of_{name}"
            cluster.start("--local_worker_num=1", address, logs, name=name, prefix=there.prefix)
            if name == SECOND:
                cluster.wait_step(3)

        assert cluster.wait_exit("third") == ROWS["WORLD_FULL"].exit_code, cluster.tails()
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit(SECOND) == 0, cluster.tails()
        cluster.check_result()
        assert "the job failed" not in cluster.log("third")


def test_a_host_whose_only_rank_went_to_a_standby_of_another_says_that_nobody_was_needed(
    tmp_path: Path, joined_hosts: tuple[Host, ...]
) -> None:
    address = f"--master_addr={joined_hosts[0].scheduler}"
    with LaunchedCluster(tmp_path, workers=2, environment=HELD) as cluster:
        # Only the first host has a standby, so only its launcher may count them.
        cluster.start("--local_worker_num=1", "--node_rank=0", "--standby_num=1", address)
        there = ("--local_worker_num=1", "--node_rank=1", "--max_restarts=0", "--log_dir=logs_of_second")
        cluster.start(*there, address, name=SECOND, prefix=joined_hosts[0].prefix)
        cluster.wait(
            lambda: any("standby" in str(one.event.node_id) for one in cluster.events(EventKind.NODE_READY)),
            "a standby",
        )
        cluster.wait_step(12)
        cluster.kill_node("1")

        assert cluster.wait_exit(SECOND) == ROWS["WORLD_FULL"].exit_code, cluster.tails()
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        [taken] = [stored.event for stored in cluster.events(EventKind.RANK_TAKEN_OVER)]
        assert (taken.rank, taken.details) == (1, "1")
