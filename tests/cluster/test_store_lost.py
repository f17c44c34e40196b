"""A scheduler's store that is lost under a living job: nothing is acknowledged into nowhere, and nobody starts again at step 0."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.store.reader import read_scheduler, read_scheduler_address
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

GONE, LOST = 38, 39
"""Exit codes of STORE_GONE and STORE_LOST."""


def _delete_the_file(path: Path) -> None:
    (path / "scheduler.db").unlink()
    (path / "scheduler.db-wal").unlink()


def _delete_the_log(path: Path) -> None:
    (path / "scheduler.db-wal").unlink()


def _leave_the_log(path: Path) -> None:
    (path / "scheduler.db").unlink()


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
def test_scheduler_whose_store_is_taken_away_ends_by_name_though_nothing_is_written(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(29)
        cluster.wait(lambda: is_committed(cluster, 25), "step 25 common")

        lose(tmp_path / "recovery")

        assert cluster.wait_exit("sched") == GONE
        assert "STORE_GONE" in cluster.log("sched")
        for name in cluster.names:
            assert cluster.processes[name].poll() is None, "a worker ended with the scheduler's store"


def is_committed(cluster: SmallCluster, step: int) -> bool:
    """Do all ranks hold it?"""
    return any(one.event.step == step for one in cluster.events(EventKind.CHECKPOINT_COMMITTED))


def _lost(cluster: SmallCluster, lose: Callable[[Path], None]) -> None:
    """A job that has committed steps, and whose scheduler has ended because its store was taken away."""
    cluster.start()
    cluster.wait_step(22)
    lose(cluster.directory / "recovery")
    assert cluster.wait_exit("sched") == GONE


def _refused(cluster: SmallCluster) -> None:
    cluster.launch("sched")
    assert cluster.wait_exit("sched") == LOST
    assert "STORE_LOST" in cluster.log("sched")
    assert "plan_made" not in cluster.log("sched").partition("STORE_GONE")[2]
    for name in cluster.names:
        assert cluster.processes[name].poll() is None, "a worker was ended"


def _went_on(cluster: SmallCluster) -> None:
    """With the ranks, the processes and the steps that there were."""
    workers = {name: cluster.processes[name] for name in cluster.names}
    cluster.wait_event(EventKind.PLAN_MADE)
    cluster.go_on()
    cluster.wait_end()
    assert {name: cluster.processes[name] for name in cluster.names} == workers
    [rebuilt] = cluster.events(EventKind.STORE_REBUILT)
    assert "worker_0: rank 0, generation 1, holds steps " in rebuilt.event.details
    plans = [stored.event for stored in cluster.events(EventKind.PLAN_MADE)]
    assert [plan.step for plan in plans] == [25], "from the newest common checkpoint, and not from step 0"
    assert (plans[0].generation or 1) % 1_000 == 0
    cluster.check_result()


@pytest.mark.parametrize("lose", [_delete_the_file, _leave_the_log], ids=lambda lose: lose.__name__)
def test_next_scheduler_refuses_by_name_and_rebuilds_when_asked(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        _lost(cluster, lose)
        cluster.wait_step(29)
        noted = [read_scheduler_address(tmp_path / "recovery", name) for name in cluster.names]
        assert [one.host for one in noted if one is not None] == ["127.0.0.1"] * len(cluster.names)

        _refused(cluster)
        assert "worker_1 (rank 1, run 1, generation 1, job " in cluster.log("sched")
        assert not (tmp_path / "recovery/scheduler.db").exists(), "a refusal made a store"
        cluster.launch("sched", MS_REBUILD_STORE="1")

        _went_on(cluster)


def test_a_person_rebuilds_the_store_before_the_scheduler_is_started(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        _lost(cluster, _delete_the_file)
        cluster.wait_step(29)

        done = subprocess.run(
            [sys.executable, "-m", "recovery", "rebuild", str(tmp_path / "recovery"), "--yes"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "worker_0 (rank 0, run 1, generation 1, job " in done.stdout
        cluster.launch("sched")

        _went_on(cluster)


def test_a_path_that_was_removed_is_rebuilt_from_what_the_living_workers_tell(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        _lost(cluster, _remove_the_path)
        cluster.wait_step(29)

        _refused(cluster)
        assert "trains job " in cluster.log("sched")
        cluster.launch("sched", MS_REBUILD_STORE="1")

        _went_on(cluster)


def test_a_job_that_is_dead_as_a_whole_is_rebuilt_and_goes_on(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(29)
        cluster.wait(lambda: is_committed(cluster, 25), "step 25 common")
        cluster.kill("sched", *cluster.names)
        _delete_the_file(tmp_path / "recovery")

        for name in (*cluster.names, "sched"):
            cluster.launch(name, MS_REBUILD_STORE="1")

        _went_on(cluster)
        known = {node.node_id: node.incarnation for node in read_scheduler(tmp_path / "recovery").nodes}
        assert known == dict.fromkeys(cluster.names, 2), "above those that the lost store has given"
