"""SIGTERM of a worker where a standby is ready: the rank goes on from the very step, on another process. Real processes."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.small_cluster import SmallCluster
from tests.cluster.test_standbys import start_with_standbys

pytestmark = pytest.mark.cluster


def steps_lost(cluster: SmallCluster) -> int:
    """Steps that any rank has applied more than once."""
    seen: dict[tuple[int, int], int] = {}
    for line in checker.lines(cluster.directory / "steps.jsonl"):
        key = (line["rank"], line["step"])
        seen[key] = seen.get(key, 0) + 1
    return sum(count - 1 for count in seen.values())


def test_sigterm_hands_the_rank_over_and_no_step_is_lost(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=30) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(random.randint(2, 30))
        cluster.signal("worker_1", signal.SIGTERM)
        assert cluster.wait_exit("worker_1") == 128 + signal.SIGTERM
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        [ended] = cluster.events(EventKind.DRAIN_ENDED)
        print(ended, cluster.log("worker_1"))
        del cluster.processes["worker_1"]
        cluster.wait_end()
        cluster.check_result()
        assert steps_lost(cluster) == 0
