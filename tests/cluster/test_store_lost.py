"""A scheduler's store that is lost under a living job: nothing is acknowledged into nowhere, and nobody starts again at step 0."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

GONE, LOST = 38, 39
"""Exit codes of STORE_GONE and STORE_LOST."""
HEARTBEAT_S = 5.0


def _delete_the_file(path: Path) -> None:
    (path / "scheduler.db").unlink()
    (path / "scheduler.db-wal").unlink()


def _delete_the_log(path: Path) -> None:
    (path / "scheduler.db-wal").unlink()


def _remove_the_path(path: Path) -> None:
    shutil.rmtree(path)


def _swap_the_path(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()
    for name in ("scheduler.db", "scheduler.db-wal"):
        shutil.copy(path.with_name("moved") / name, path / name)


LOSSES = pytest.mark.parametrize(
    "lose",
    [_delete_the_file, _delete_the_log, _remove_the_path, _swap_the_path],
    ids=lambda lose: lose.__name__,
)


@LOSSES
def test_scheduler_whose_store_is_taken_away_ends_by_name_within_a_heartbeat(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(22)

        lose(tmp_path / "recovery")

        assert cluster.wait_exit("sched", timeout_s=HEARTBEAT_S) == GONE
        assert "STORE_GONE" in cluster.log("sched")
        for name in cluster.names:
            assert cluster.processes[name].poll() is None, "a worker ended with the scheduler's store"
