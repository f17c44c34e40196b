"""A save that fails says so where a person looks, whatever failed in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster

pytestmark = pytest.mark.cluster


def test_ranks_with_more_than_1024_open_files_save_and_come_back(tmp_path: Path) -> None:
    many = {"JOB_OPEN_FILES": "1100", "JOB_EPOCHS": "1", "JOB_HELD_STEP": "25"}
    with Cluster(tmp_path, workers=2, environment=many) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        cluster.go_on()
        cluster.wait_end()

        plans = [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)]
        assert plans == [0, 20]
        assert "event=not_captured" not in cluster.tails()
