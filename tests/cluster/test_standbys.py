"""Standbys as real processes: a lost rank is taken at once, whatever the rejoin window of the lost id says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.cluster.inspected import run
from tests.cluster.small_cluster import SmallCluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

WINDOW_S = 600.0
"""Longer than a test waits: what has happened did not wait for it."""


def start_with_standbys(cluster: Cluster, count: int) -> None:
    """Start all, and wait until the standbys wait."""
    names = [f"standby_{number}" for number in range(count)]
    for name in cluster.names:
        cluster.launch(name)
    for name in names:
        cluster.launch(name, MS_STANDBY="1")
    cluster.launch("sched", MS_STANDBY_NUM=str(count))
    for name in names:
        cluster.wait_event(EventKind.NODE_READY, name)


def lose(cluster: Cluster, name: str) -> None:
    """SIGKILL for good."""
    cluster.kill(name)
    del cluster.processes[name]


def wait_taken_over(cluster: Cluster, name: str, *, of: str) -> None:
    """It trains with the rank of the lost one."""
    cluster.wait_event(EventKind.RANK_TAKEN_OVER, name)
    seen = len(cluster.events(EventKind.FIRST_STEP_DONE, name))
    cluster.wait_event(EventKind.FIRST_STEP_DONE, name, count=max(1, seen))
    [taken] = cluster.events(EventKind.RANK_TAKEN_OVER, name)
    assert taken.event.details == of


def test_standby_takes_a_lost_rank_at_once_and_the_bits_stay(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment={"JOB_HELD_STEP": "40"}) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "standby_0", of="worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert len(cluster.generations()) == 2
        cluster.check_result()


def test_torch_job_goes_on_with_a_standby_and_the_same_bits(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, workers=2, window_s=WINDOW_S, environment={"JOB_HELD_STEP": "60"}) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(25)
        lose(cluster, "worker_1")
        cluster.go_on()
        wait_taken_over(cluster, "standby_0", of="worker_1")
        cluster.wait_end()
        assert "event=process_replaced" not in cluster.log("worker_0")
        cluster.check_same_as(undisturbed(workers=2))


def test_ranks_whose_files_lie_under_the_lost_ones_names_are_taken_over_twice(tmp_path: Path) -> None:
    environment = {"JOB_SAVES_BY_NODE": "1", "JOB_HELD_STEP": "55"}
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment=environment) as cluster:
        start_with_standbys(cluster, 2)
        cluster.wait_step(12)
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "standby_0", of="worker_1")
        left = {path.name for path in (tmp_path / "ckpt" / "worker_1").iterdir()}
        cluster.wait_step(32, generation=2)
        lose(cluster, "standby_0")
        wait_taken_over(cluster, "standby_1", of="standby_0")
        cluster.go_on()
        cluster.wait_end()
        assert {path.name for path in (tmp_path / "ckpt" / "worker_1").iterdir()} == left
        cluster.check_result()


def test_rank_that_was_taken_over_and_not_saved_since_is_found_by_the_next_process_of_the_id(
    tmp_path: Path,
) -> None:
    environment = {"JOB_SAVES_BY_NODE": "1", "JOB_HELD_STEP": "40"}
    with SmallCluster(tmp_path, window_s=0.0, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)
        lose(cluster, "worker_1")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        cluster.kill("standby_0")
        cluster.launch("standby_0", MS_STANDBY="1")
        cluster.go_on()
        cluster.wait_end()
        [_, again] = cluster.events(EventKind.NODE_ADMITTED, "standby_0")
        assert again.event.rank == 1
        cluster.check_result()


def test_worker_that_dies_while_no_scheduler_runs_is_replaced_by_a_standby(tmp_path: Path) -> None:
    environment = {"JOB_HELD_STEP": "50"}
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)
        cluster.kill("sched")
        lose(cluster, "worker_1")
        cluster.launch("sched", MS_STANDBY_NUM="1")
        wait_taken_over(cluster, "standby_0", of="worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_standby_that_hangs_is_passed_over_and_one_that_dies_disturbs_nobody(tmp_path: Path) -> None:
    environment = {"MS_ABORT_TIMEOUT": "1", "JOB_HELD_STEP": "50"}
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment=environment) as cluster:
        start_with_standbys(cluster, 3)
        cluster.wait_step(12)
        lose(cluster, "standby_2")
        cluster.wait_event(EventKind.NODE_LOST, "standby_2")
        cluster.wait_step(16)
        assert cluster.generations() == {1}

        cluster.signal("standby_0", signal.SIGSTOP)
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "standby_1", of="worker_1")
        [declined] = cluster.events(EventKind.TAKEOVER_DECLINED)
        assert (declined.event.node_id, declined.event.details) == ("standby_0", "worker_1")
        assert "did not answer within 1 s" in declined.event.reason
        cluster.signal("standby_0", signal.SIGCONT)
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_lost_id_returns_as_a_standby_and_takes_the_next_lost_rank(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=1.0, environment={"JOB_HELD_STEP": "50"}) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)
        cluster.kill("worker_1")
        # Behind its window it would get its own rank back.
        wait_taken_over(cluster, "standby_0", of="worker_1")
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.NODE_ADMITTED, "worker_1", count=2)
        assert cluster.events(EventKind.NODE_ADMITTED, "worker_1")[-1].event.details == "standby"

        lose(cluster, "worker_0")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert cluster.events(EventKind.RANK_TAKEN_OVER, "worker_1")[0].event.rank == 0
        cluster.check_result()


def test_process_that_is_started_for_a_lost_rank_needs_no_place_among_the_standbys(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment={"JOB_HELD_STEP": "50"}) as cluster:
        cluster.start()
        cluster.wait_step(12)
        cluster.launch("worker_1.2", MS_REPLACES="worker_1")
        cluster.wait_event(EventKind.NODE_REFUSED, "worker_1.2")
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "worker_1.2", of="worker_1")
        assert "Global rank id: 1" in cluster.log("worker_1.2")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_lost_store_is_built_again_with_the_ranks_that_standbys_had_taken(tmp_path: Path) -> None:
    environment = {"JOB_SAVES_BY_NODE": "1", "JOB_HELD_STEP": "50"}
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "standby_0", of="worker_1")
        cluster.wait_step(32, generation=2)
        cluster.kill("sched")
        for path in (tmp_path / "recovery").glob("scheduler.db*"):
            path.unlink()
        cluster.launch("sched", MS_STANDBY_NUM="1", MS_REBUILD_STORE="1")
        cluster.wait_event(EventKind.STORE_REBUILT)
        for name in ("worker_0", "standby_0"):
            cluster.wait_event(EventKind.NODE_ADMITTED, name)
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_every_view_of_a_job_with_standbys_can_be_asked_for(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment={"JOB_HELD_STEP": "50"}) as cluster:
        start_with_standbys(cluster, 2)
        cluster.wait_step(12)
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "standby_0", of="worker_1")
        for view in ("status", "nodes", "events", "timeline", "plan", "verify"):
            done = run(view, str(tmp_path / "recovery"))
            assert done.returncode in (0, 1), f"{view}: {done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr, f"{view}: {done.stderr}"
        cluster.go_on()
        cluster.wait_end()


def test_a_standby_that_comes_while_an_earlier_one_may_be_gone_waits_for_its_place(tmp_path: Path) -> None:
    """Refused for good it would be gone itself, since nobody starts a surplus process again; then nobody takes the next lost rank."""
    environment = {"MS_NODE_TIMEOUT": "8", "JOB_HELD_STEP": "55"}
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(12)
        # A scheduler that was started again does not know yet that it hangs.
        cluster.signal("standby_0", signal.SIGSTOP)
        cluster.kill("sched")
        cluster.launch("standby_1", MS_STANDBY="1")
        cluster.launch("sched", MS_STANDBY_NUM="1")
        cluster.wait_event(EventKind.NODE_READY, "standby_1")
        [refused] = cluster.events(EventKind.NODE_REFUSED, "standby_1")
        assert 'finds all places taken, one of them by "standby_0"' in refused.event.reason
        lose(cluster, "standby_0")
        lose(cluster, "worker_1")
        wait_taken_over(cluster, "standby_1", of="worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
