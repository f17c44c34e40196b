"""A host that waits for another one to be lost: `--spares=1`. Needs root."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.faults.hosts import Host, hosts

__all__ = ["hosts"]

pytestmark = pytest.mark.cluster

SECOND, SPARE = "second", "spare"
HELD = {"JOB_HELD_STEP": "40"}


def start(cluster: LaunchedCluster, hosts: tuple[Host, ...]) -> None:
    """Two hosts of two workers, and one that waits; all are ready."""
    flags = ("--local_worker_num=2", "--spares=1", f"--master_addr={hosts[0].scheduler}")
    cluster.start(*flags, "--node_rank=0")
    for number, (name, there) in enumerate(zip((SECOND, SPARE), hosts, strict=True), 1):
        cluster.start(
            *flags, f"--node_rank={number}", f"--log_dir=logs_of_{name}", name=name, prefix=there.prefix
        )
    cluster.wait_step(12)
    for standby in ("standby_0", "standby_1"):
        cluster.wait_event(EventKind.NODE_ADMITTED, standby)


def lose_the_second(cluster: LaunchedCluster) -> None:
    """The host is lost, and its ranks train on the one that waited."""
    cluster.kill(SECOND)
    cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
    cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_1")
    cluster.wait_step(20, generation=2)


def test_a_spare_host_takes_the_ranks_of_a_lost_one(tmp_path: Path, hosts: tuple[Host, ...]) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment=HELD) as cluster:
        start(cluster, hosts)
        lose_the_second(cluster)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit(SPARE) == 0, cluster.tails()
        cluster.check_result()
        taken = {stored.event.rank for stored in cluster.events(EventKind.RANK_TAKEN_OVER)}
        assert taken == {2, 3}
        assert len(cluster.events(EventKind.PLAN_MADE)) == 2, "a lost host costs one generation"


def test_a_spare_host_that_nobody_needed_ends_with_its_job(tmp_path: Path, hosts: tuple[Host, ...]) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment=HELD) as cluster:
        start(cluster, hosts)
        cluster.go_on()

        assert {cluster.wait_exit(name) for name in (LAUNCHER, SECOND, SPARE)} == {0}, cluster.tails()
        cluster.check_result()


@pytest.mark.parametrize("holds_ranks", [True, False])
def test_who_ends_a_spare_host_has_the_job_saved_where_it_trains(
    tmp_path: Path, hosts: tuple[Host, ...], *, holds_ranks: bool
) -> None:
    with LaunchedCluster(tmp_path, workers=4, environment={**HELD, "MS_STOP_GRACE": "120"}) as cluster:
        start(cluster, hosts)
        if holds_ranks:
            lose_the_second(cluster)
        cluster.signal(SPARE, signal.SIGTERM)
        if holds_ranks:
            # On a busy machine the ranks have come to the step at which they are held, and save none behind it.
            cluster.wait_event(EventKind.DRAIN_BEGUN)
            cluster.go_on()

        assert cluster.wait_exit(SPARE) == 128 + signal.SIGTERM, cluster.tails()
        assert ("saved at step" in cluster.log(SPARE)) is holds_ranks
        if not holds_ranks:
            cluster.go_on()
            assert {cluster.wait_exit(name) for name in (LAUNCHER, SECOND)} == {0}, cluster.tails()
            cluster.check_result()
