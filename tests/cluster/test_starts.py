"""How processes are started: as the documents show it, as scripts do it by accident, and what reaches training."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import LAST_STEP, PYTEST, SmallCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


def test_script_started_by_pytest_in_every_role_survives_a_killed_worker(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, command=PYTEST) as cluster:
        cluster.start()
        cluster.wait_step(12)

        cluster.kill_and_relaunch("worker_1")
        cluster.wait_end()

        admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, "worker_1")]
        assert [(event.incarnation, event.rank) for event in admitted[1:]] == [(2, 1)]
        assert cluster.generations() == {1, 2}
        assert "1 passed" in cluster.log("worker_0")
        assert "1 passed" in cluster.log("worker_1")
        cluster.check_result()
