"""What must not count as nothing: a dead job whose scheduler's store was deleted, and a worker's own store of a newer release."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

STORE_VERSION, STORE_LOST = 33, 39


def test_a_dead_job_whose_store_was_deleted_does_not_begin_at_step_0(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(29)
        # A report leaves only behind its row: the workers' stores know the job now.
        cluster.wait_commit(25)
        cluster.kill("sched", *cluster.names)
        for name in ("scheduler.db", "scheduler.db-wal", "scheduler.db-shm", "scheduler.db.commits"):
            (tmp_path / "recovery" / name).unlink()
        for name in (*cluster.names, "sched"):
            cluster.launch(name)

        assert cluster.wait_exit("sched") == STORE_LOST
        assert cluster.log("sched").count("plan_made") == 1, "it planned again"


def test_a_worker_whose_own_store_is_of_a_newer_release_ends_by_name(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(29)
        # Its store is closed cleanly, so that another tool may write to it.
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.wait_exit("worker_1")
        with closing(sqlite3.connect(tmp_path / "recovery/workers/worker_1.db")) as connection:
            [known] = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
            connection.commit()
        cluster.launch("worker_1")

        assert cluster.wait_exit("worker_1") == STORE_VERSION
        assert "STORE_VERSION" in cluster.log("worker_1")
        assert len(cluster.events(EventKind.PLAN_MADE)) == 1, "what it holds was taken for nothing"

        with closing(sqlite3.connect(tmp_path / "recovery/workers/worker_1.db")) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", [known])
            connection.commit()
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
