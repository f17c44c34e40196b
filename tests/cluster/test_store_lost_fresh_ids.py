"""A scheduler's store that is lost after processes were started again under fresh ids: the same ranks, steps and bits as without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.reader import read_worker
from tests.cluster.launched import LAUNCHER
from tests.cluster.small_cluster import SmallCluster
from tests.cluster.test_launcher_standbys import WINDOW_S, assert_done, cluster_of, taken_over

pytestmark = pytest.mark.cluster


def lose_store(directory: Path, *workers: str) -> None:
    """Remove the scheduler's, and those of these workers."""
    for file in (directory / "recovery").glob("scheduler.db*"):
        file.unlink()
    for name in workers:
        (directory / f"recovery/workers/{name}.db").unlink()


def committed(cluster: SmallCluster, step: int) -> bool:
    found = cluster.events(EventKind.CHECKPOINT_COMMITTED)
    return any((one.event.step or 0) >= step for one in found)


def has_noted(directory: Path, name: str, generation: int) -> bool:
    """A process that takes a lost rank opens its store behind its first steps."""
    try:
        job = read_worker(directory / "recovery", name, accept_without_wal=True).job
    except RecoveryError:
        return False
    return job is not None and job.generation == generation


def went_on(cluster: SmallCluster, step: int) -> None:
    """From the newest step that all ranks held, in a generation whose number nobody was given before."""
    plan = cluster.events(EventKind.PLAN_MADE)[0].event
    assert plan.step == step
    assert plan.generation is not None
    assert plan.generation >= 1_000
    assert plan.generation % 1_000 == 0


@pytest.mark.parametrize("by_hand", [True, False], ids=["recovery rebuild", "MS_REBUILD_STORE"])
def test_a_launched_job_whose_rank_a_fresh_id_holds_goes_on(tmp_path: Path, by_hand: bool) -> None:
    environment = {"MS_REBUILD_STORE": str(int(not by_hand))}
    with cluster_of(tmp_path, window_s=WINDOW_S, held=True, **environment) as cluster:
        cluster.start()
        cluster.wait_step(12)
        cluster.kill_node("0")
        cluster.wait_step(39, generation=2)
        assert taken_over(cluster) == [("0.2", 0, "0")]
        cluster.wait(lambda: committed(cluster, 35), "step 35 common")
        cluster.wait(lambda: has_noted(tmp_path, "0.2", 2), "store of the process that took the rank")
        cluster.kill(LAUNCHER)
        cluster.wait(lambda: not cluster.living(), "the end of its processes")
        lose_store(tmp_path)
        if by_hand:
            subprocess.run(
                [sys.executable, "-m", "recovery", "rebuild", str(tmp_path / "recovery"), "--yes"], check=True
            )

        cluster.go_on()
        cluster.start()

        assert_done(cluster)
        [rebuilt] = cluster.events(EventKind.STORE_REBUILT)
        assert "0: rank 0, generation 2, holds steps " in rebuilt.event.details, (
            "its place knows what 0.2 did"
        )
        went_on(cluster, 35)


def test_a_fresh_id_tells_what_its_place_knows_when_the_workers_are_asked(tmp_path: Path) -> None:
    environment = {"JOB_HELD_STEP": "30", "MS_REJOIN_WINDOW": "0"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(12)
        cluster.kill("worker_0")
        cluster.launch("worker_0.2", MS_REPLACES="worker_0")
        cluster.wait_step(29, generation=2)
        cluster.wait(lambda: committed(cluster, 25), "step 25 common")
        cluster.wait(lambda: has_noted(tmp_path, "worker_0.2", 2), "store of the process that took the rank")
        cluster.kill("sched", "worker_0.2")
        # What lies in the path does not show all ranks, so every worker is asked; the living one remembers.
        lose_store(tmp_path, "worker_1")

        cluster.launch("sched", MS_REBUILD_STORE="1")
        cluster.launch("worker_0.3", MS_REPLACES="worker_0.2")

        cluster.wait_event(EventKind.PLAN_MADE)
        cluster.go_on()
        assert cluster.wait_exit("worker_0.3") == 0, cluster.tails()
        assert cluster.wait_exit("worker_1") == 0, cluster.tails()
        assert cluster.wait_exit("sched") == 0, cluster.tails()
        cluster.check_result()
        [rebuilt] = cluster.events(EventKind.STORE_REBUILT)
        assert re.search(r"worker_0\.3: rank 0, generation 2, holds steps [\d, ]*25;", rebuilt.event.details)
        went_on(cluster, 25)
