"""A worker that is started when its job has finished and the scheduler is gone: it says so and ends, long before MS_TOPO_TIMEOUT."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster


def test_worker_started_after_its_job_finished_ends_by_itself_and_says_why(tmp_path: Path) -> None:
    short = {"MS_NODE_TIMEOUT": "6", "MS_TOPO_TIMEOUT": "1800", "JOB_STEP_MS": "2"}
    with SmallCluster(tmp_path, window_s=2.0, environment=short) as cluster:
        cluster.start()
        cluster.wait_end()

        cluster.launch("worker_1")
        assert cluster.wait_exit("worker_1") == 0

        said = cluster.log("worker_1")
        assert "event=job_is_finished" in said
        assert "event=nothing_to_do" in said
        assert "run 1: all 2 ranks are done" in said


def test_next_run_s_workers_may_be_there_before_their_scheduler(tmp_path: Path) -> None:
    short = {"MS_NODE_TIMEOUT": "20", "JOB_STEP_MS": "2"}
    with SmallCluster(tmp_path, environment=short) as cluster:
        cluster.start()
        cluster.wait_end()

        for name in cluster.names:
            cluster.launch(name)
        cluster.wait(lambda: "event=job_is_finished" in cluster.log("worker_0"), "word of the finished job")
        cluster.launch("sched")
        cluster.wait_end()
        assert "run=2" in cluster.log("worker_0")
