"""Standbys as real processes: a lost rank is taken at once, whatever the rejoin window of the lost id says."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import clock
from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

WINDOW_S = 30.0
SOON_MS = 10_000
"""Far below the window, far above what a busy machine needs."""


def start_with_standbys(cluster: SmallCluster, count: int) -> None:
    """Start all, and wait until the standbys wait."""
    names = [f"standby_{number}" for number in range(count)]
    for name in (*cluster.names, *cluster.servers):
        cluster.launch(name)
    for name in names:
        cluster.launch(name, MS_STANDBY="1")
    cluster.launch("sched", MS_STANDBY_NUM=str(count))
    for name in names:
        cluster.wait_event(EventKind.NODE_READY, name)


def test_standby_takes_a_lost_rank_at_once_and_the_bits_stay(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=WINDOW_S) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)

        killed_ms = clock.wall_ms()
        cluster.kill("worker_1")
        del cluster.processes["worker_1"]
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        cluster.wait_event(EventKind.FIRST_STEP_DONE, "standby_0")
        cluster.wait_end()

        [taken] = cluster.events(EventKind.RANK_TAKEN_OVER)
        assert (taken.event.rank, taken.event.details) == (1, "worker_1")
        assert taken.wall_ms - killed_ms < SOON_MS
        [first_step] = cluster.events(EventKind.FIRST_STEP_DONE, "standby_0")
        assert first_step.wall_ms - killed_ms < SOON_MS
        assert len(cluster.generations()) == 2
        cluster.check_result()
