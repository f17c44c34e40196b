"""Jobs on a real Ray of this machine, whose nodes are network namespaces. Needs root."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import recovery.ray
from recovery.core.records import EventKind
from recovery.errors import UsageError
from tests.cluster.small_cluster import SCRIPT, PlacedCluster
from tests.cluster.test_drain import steps_lost
from tests.ray.ray_cluster import RayCluster, ray_cluster

pytestmark = [pytest.mark.ray]

DRIVER = f"""
import sys
import ray
import recovery.ray

ray.init(address=sys.argv[1])
sys.exit(recovery.ray.run({SCRIPT!r}, num_workers=2, spares=int(sys.argv[2])))
"""


class Job(PlacedCluster):
    """One job, whose driver is `driver`."""

    def __init__(self, directory: Path, **environment: str) -> None:
        super().__init__(directory, environment={"JOB_HELD_STEP": "40", **environment})
        (directory / "driver.py").write_text(DRIVER)

    @property
    def environment(self) -> dict[str, str]:
        """Of Ray's nodes too: what they start has it of them."""
        return dict(self._environment)

    def drive(self, cluster: RayCluster, *, spares: int = 0) -> None:
        command = (sys.executable, "driver.py", cluster.address, str(spares))
        self.spawn("driver", command, cluster.environment, imports=self.imports)

    def wait_done(self) -> None:
        """The bits are those of an undisturbed training."""
        assert self.wait_exit("driver") == 0, self.tails()
        self.check_result()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as made:
        yield made


def node_of(cluster: RayCluster, node_id: str) -> int:
    """On which node a process of the job runs."""
    for node in cluster.nodes:
        for pid in cluster.processes(node):
            try:
                if psutil.Process(pid).environ().get("MS_NODE_ID") == node_id:
                    return node
            except psutil.Error:
                continue
    raise AssertionError(f"no process of {node_id}")


def test_a_killed_node_with_a_spare(job: Job) -> None:
    with ray_cluster(3, 0, job.environment) as cluster:
        job.drive(cluster, spares=1)
        job.wait_step(12)
        job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
        cluster.kill_node(node_of(cluster, "1"))
        job.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        job.wait_step(20, generation=2)
        job.go_on()
        job.wait_done()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_node_for_which_another_one_comes(job: Job, rank: str) -> None:
    """Rank 0's has the scheduler: then all hosts begin again."""
    with ray_cluster(2, 1, job.environment) as cluster:
        job.drive(cluster)
        job.wait_step(12)
        job.wait_commit(10)
        cluster.kill_node(node_of(cluster, rank))
        cluster.start_node(2)
        job.go_on()
        job.wait_done()


def test_a_node_that_is_drained(job: Job) -> None:
    """No step is lost by it."""
    with ray_cluster(3, 0, job.environment) as cluster:
        job.drive(cluster, spares=1)
        job.wait_step(12)
        job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
        cluster.drain_node(node_of(cluster, "1"), within_s=120)
        job.wait(lambda: "Ray drains its node" in job.log("driver"), "notice")
        job.go_on()
        job.wait_done()
        assert "no step is lost" in job.log("driver")


def test_the_node_of_the_scheduler_that_is_drained(job: Job) -> None:
    """The whole job saves a step, and goes on on other nodes."""
    with ray_cluster(2, 1, job.environment) as cluster:
        job.drive(cluster)
        job.wait_step(12)
        cluster.drain_node(node_of(cluster, "0"), within_s=120)
        # A rank that is held at a step comes to none behind it.
        job.wait_event(EventKind.DRAIN_BEGUN)
        job.go_on()
        job.wait(lambda: "the scheduler's node was drained" in job.log("driver"), "another start")
        cluster.start_node(2)
        job.wait_done()
        assert steps_lost(job) == 0


def test_a_process_that_is_not_connected_is_refused() -> None:
    with pytest.raises(UsageError, match="is not connected to a cluster"):
        recovery.ray.run("train.py", num_workers=1)
