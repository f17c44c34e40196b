"""Packets that the kernel drops between two hosts: a worker in a network namespace of its own, cut off by nft. Needs root."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.faults.hosts import BOTH, Host, host
from tests.faults.test_network_faults import IMPATIENT, PATIENT, pass_time
from tests.faults.tiny_cluster import TinyCluster

__all__ = ["host"]

pytestmark = [pytest.mark.cluster, pytest.mark.faults]


@contextlib.contextmanager
def cluster_across(directory: Path, host: Host, environment: dict[str, str]) -> Iterator[TinyCluster]:
    """Two workers that train, worker_1 on the other host."""
    across = {**environment, "MS_SCHED_HOST": host.scheduler}
    with TinyCluster(directory, workers=2, environment=across) as cluster:
        cluster.started_by["worker_1"] = host.prefix
        cluster.start()
        cluster.wait_step(15)
        yield cluster


def test_packets_of_one_way_lost_for_less_than_the_lease_cost_no_rollback(tmp_path: Path, host: Host) -> None:
    with cluster_across(tmp_path, host, PATIENT) as cluster:
        before = cluster.pids()
        host.cut("output")
        pass_time(2.5)
        host.reconnect()
        pass_time(1.0)
        assert cluster.pids() == before
        cluster.finish()
        assert not cluster.events(EventKind.NODE_LOST)
        assert cluster.generations() == {1}


def test_packets_lost_for_longer_than_the_lease_cost_one_rollback_and_no_process(
    tmp_path: Path, host: Host
) -> None:
    with cluster_across(tmp_path, host, IMPATIENT) as cluster:
        before = cluster.pids()
        host.cut(*BOTH)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        host.reconnect()
        cluster.wait_step(20, generation=2)
        assert cluster.pids() == before
        cluster.finish()
        assert cluster.plan_count() == 2, "more than one rollback"
        assert len(cluster.events(EventKind.NODE_ADMITTED)) == 2, "a living process was admitted again"
