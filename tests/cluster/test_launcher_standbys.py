"""Who takes a lost rank under `recovery msrun`: the next process under a fresh node id, or a standby. Nobody waits for a window."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from recovery import clock
from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_drain import PATIENT
from tests.cluster.test_launcher import KILLED, assert_nothing_left

pytestmark = pytest.mark.cluster

WINDOW_S = 300.0
"""Whoever waits for it is not done before the test's own deadline."""
DEADLINE_S = 60.0
ROUNDED_MS = 50
"""Times of two clocks, cut off to milliseconds."""


def cluster_of(
    directory: Path, *, window_s: float = WINDOW_S, held: bool = False, **environment: str
) -> LaunchedCluster:
    """Held: the job does not end before the test says so."""
    ours = {**({"JOB_HELD_STEP": "40"} if held else {}), "MS_REJOIN_WINDOW": str(window_s)}
    return LaunchedCluster(directory, environment={**ours, **environment})


def admitted(cluster: LaunchedCluster) -> list[str]:
    return [str(stored.event.node_id) for stored in cluster.events(EventKind.NODE_ADMITTED)]


def taken_over(cluster: LaunchedCluster) -> list[tuple[str, int | None, str]]:
    """Who took which rank from whom, in order."""
    return [
        (str(stored.event.node_id), stored.event.rank, stored.event.details)
        for stored in cluster.events(EventKind.RANK_TAKEN_OVER)
    ]


def generations(cluster: LaunchedCluster) -> list[int | None]:
    return [stored.event.generation for stored in cluster.events(EventKind.PLAN_MADE)]


def assert_done(cluster: LaunchedCluster) -> None:
    assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
    cluster.check_result()
    assert_nothing_left(cluster)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_workers_rank_is_taken_at_once_under_a_fresh_id(tmp_path: Path, rank: str) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start()
        cluster.wait_step(12)
        cluster.kill_node(rank)
        cluster.go_on()

        assert_done(cluster)
        assert taken_over(cluster) == [(f"{rank}.2", int(rank), rank)]
        assert [stored.event.node_id for stored in cluster.events(EventKind.NODE_LOST)] == [rank]
        assert cluster.reasons_lost() == [KILLED]
        assert f"start 2, node {rank}.2 in the place of {rank})" in cluster.log(LAUNCHER)
        seen = cluster.seen(f"{rank}.2")
        assert seen["places"] == dict.fromkeys(("RANK", "RANK_ID", "LOCAL_RANK", "DEVICE_ID"), rank)
        log = cluster.log_of(f"worker_{rank}")
        assert f"=== worker_{rank} start 1 " in log, "a log was cut"
        assert f"=== worker_{rank} start 2 " in log


def test_each_further_start_has_an_id_of_its_own(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start()
        cluster.wait_step(8)
        cluster.kill_node("1")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "1.2")
        cluster.wait_step(12, generation=2)
        cluster.kill_node("1.2")
        cluster.go_on()

        assert_done(cluster)
        assert taken_over(cluster) == [("1.2", 1, "1"), ("1.3", 1, "1.2")]


def test_the_same_id_waits_for_its_window_where_that_is_asked(tmp_path: Path) -> None:
    window_s = 6.0
    with cluster_of(tmp_path, window_s=window_s, held=True) as cluster:
        cluster.start("--rejoin=same")
        cluster.wait_step(12)
        killed_ms = clock.wall_ms()
        cluster.kill_node("1")
        cluster.go_on()

        assert_done(cluster)
        back = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, "1")]
        assert [(event.incarnation, event.rank) for event in back[1:]] == [(2, 1)]
        assert set(admitted(cluster)) == {"0", "1"}
        returned = cluster.events(EventKind.NODE_ADMITTED, "1")[-1]
        # Its connection closes after it was killed, and the window counts from then.
        assert returned.wall_ms >= killed_ms + window_s * 1000 - ROUNDED_MS


def test_a_worker_that_dies_before_it_is_let_in_keeps_its_id(tmp_path: Path) -> None:
    with cluster_of(tmp_path) as cluster:
        (tmp_path / "late.py").write_text(
            "import os, signal, socket, time\n"
            "from pathlib import Path\n"
            "def answers():\n"
            "    with socket.socket() as probe:\n"
            "        return probe.connect_ex(('127.0.0.1', int(os.environ['MS_SCHED_PORT']))) == 0\n"
            "first = Path('was_here')\n"
            "if os.environ.get('MS_NODE_ID') == '1' and not first.exists():\n"
            "    first.touch()\n"
            "    while not answers():\n"
            "        time.sleep(0.05)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "import runpy\n"
            "import recovery\n"
            "runpy.run_path('train.py', run_name='__main__')\n"
        )
        cluster.start(script="late.py")

        assert_done(cluster)
        assert set(admitted(cluster)) == {"0", "1"}
        assert "=== worker_1 start 2 " in cluster.log_of("worker_1")


# --- standbys ------------------------------------------------------------------------------------------------------------


def test_a_standby_takes_a_lost_rank_and_the_next_process_waits_in_its_place(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start("--standby_num=1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(8)
        cluster.kill_node("1")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        cluster.wait_event(EventKind.NODE_READY, "1.2")
        cluster.wait_step(14, generation=2)
        cluster.kill_node("standby_0")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "1.2")
        cluster.wait_event(EventKind.NODE_READY, "standby_0.2")
        cluster.go_on()

        assert_done(cluster)
        assert taken_over(cluster) == [("standby_0", 1, "1"), ("1.2", 1, "standby_0")]
        expected = {"RANK": "1", "RANK_ID": "1", "LOCAL_RANK": "1", "DEVICE_ID": "1"}
        assert cluster.seen("standby_0")["places"] == cluster.seen("1.2")["places"] == expected


def test_a_standby_that_dies_is_started_again_and_the_job_does_not_notice(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start("--standby_num=1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(6)
        cluster.kill_node("standby_0")
        cluster.wait_event(EventKind.NODE_READY, "standby_0.2")
        cluster.go_on()

        assert_done(cluster)
        assert generations(cluster) == [1]
        assert "=== standby_0 start 2 " in cluster.log_of("standby_0")


def test_a_standby_that_always_fails_ends_no_job(tmp_path: Path) -> None:
    with cluster_of(tmp_path) as cluster:
        (tmp_path / "picky.py").write_text(
            "import os, runpy\n"
            "import recovery\n"
            "if os.environ.get('MS_STANDBY'):\n"
            "    raise RuntimeError('no device for me')\n"
            "runpy.run_path('train.py', run_name='__main__')\n"
        )
        cluster.start("--standby_num=1", script="picky.py")

        assert_done(cluster)
        assert generations(cluster) == [1]
        assert "it holds no rank, so the job goes on without it" in cluster.log(LAUNCHER)
        assert "the job's workers were complete without: standby_0" in cluster.log(LAUNCHER)


def test_a_standby_too_many_ends_alone(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True, MS_STANDBY_NUM="1") as cluster:
        cluster.start("--standby_num=2")
        cluster.wait(lambda: "(WORLD_FULL)" in cluster.log(LAUNCHER), "its refusal")
        cluster.go_on()

        assert_done(cluster)
        assert generations(cluster) == [1]
        assert not list(cluster.logs.glob("incident-*")), "it is no failure"


def test_a_worker_that_fails_for_good_when_a_standby_has_its_rank_ends_no_job(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start("--standby_num=1", "--max_restarts=0")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(8)
        cluster.kill_node("1")
        cluster.go_on()

        assert_done(cluster)
        assert taken_over(cluster) == [("standby_0", 1, "1")]
        assert "another process has its rank, so the job goes on without it" in cluster.log(LAUNCHER)


def test_a_rank_that_is_handed_over_as_planned_uses_up_no_restart_and_is_no_incident(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={**PATIENT, "JOB_HELD_STEP": "40"}) as cluster:
        cluster.start("--standby_num=1", "--max_restarts=0")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(8)
        os.kill(cluster.pid_of("1"), signal.SIGTERM)
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        cluster.wait_event(EventKind.NODE_READY, "1.2")
        cluster.go_on()

        assert_done(cluster)
        assert "its rank is handed over as planned; it is started again" in cluster.log(LAUNCHER)
        assert not list(cluster.logs.glob("incident-*"))


def test_what_a_script_does_after_training_is_not_done_by_who_was_never_needed(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        (tmp_path / "after.py").write_text(
            "import os, runpy\n"
            "from pathlib import Path\n"
            "import recovery\n"
            "runpy.run_path('train.py', run_name='__main__')\n"
            "Path('after_' + os.environ['MS_NODE_ID']).touch()\n"
        )
        cluster.start("--standby_num=1", script="after.py")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.go_on()

        assert_done(cluster)
        assert {path.name for path in tmp_path.glob("after_*")} == {"after_0", "after_1"}


def test_a_standby_that_has_not_started_when_the_job_ends_is_not_waited_for(tmp_path: Path) -> None:
    with cluster_of(tmp_path) as cluster:
        (tmp_path / "slow.py").write_text(
            "import os, runpy, time\n"
            "if os.environ.get('MS_STANDBY'):\n"
            "    time.sleep(600)\n"
            "import recovery\n"
            "runpy.run_path('train.py', run_name='__main__')\n"
        )
        cluster.start("--standby_num=1", script="slow.py")

        assert_done(cluster)
        assert "standby_0: the job has finished without it" in cluster.log(LAUNCHER)


def test_standbys_without_recovery_are_refused(tmp_path: Path) -> None:
    with cluster_of(tmp_path, MS_ENABLE_RECOVERY="0") as cluster:
        cluster.start("--standby_num=1")
        assert cluster.wait_exit(LAUNCHER) == 23
        assert "SETTING_CONFLICT: --standby_num=1: without MS_ENABLE_RECOVERY=1" in cluster.log(LAUNCHER)
        assert_nothing_left(cluster)


# --- the launcher itself -------------------------------------------------------------------------------------------------


def test_a_launcher_that_is_started_again_waits_for_no_window(tmp_path: Path) -> None:
    """It begins under fresh ids: those that the launcher before has left behind are refused for as long as their windows last."""
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start()
        cluster.wait_step(8)
        cluster.kill_node("1")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "1.2")
        cluster.wait_step(12, generation=2)
        cluster.kill(LAUNCHER)
        assert_nothing_left(cluster)
        cluster.start()
        cluster.wait_step(16, generation=3)
        cluster.kill_node("1.3")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "1.4")
        cluster.go_on()

        assert_done(cluster)
        first, *again, last = taken_over(cluster)
        assert (first, last) == (("1.2", 1, "1"), ("1.4", 1, "1.3"))
        assert sorted(again) == [("0.2", 0, "0"), ("1.3", 1, "1.2")], "no id is used twice"


def test_the_places_are_given_back_to_their_own_ids(tmp_path: Path) -> None:
    """The place of rank 1 is held by the fresh id of the launcher before; the next one has it keep its ids."""
    with cluster_of(tmp_path, window_s=1.0, held=True) as cluster:
        cluster.start()
        cluster.wait_step(8)
        cluster.kill_node("1")
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "1.2")
        cluster.wait_step(12, generation=2)
        cluster.kill(LAUNCHER)
        assert_nothing_left(cluster)
        cluster.start("--rejoin=same")
        cluster.wait_step(16, generation=3)
        cluster.go_on()

        assert_done(cluster)
        assert taken_over(cluster) == [("1.2", 1, "1"), ("1", 1, "1.2")]


def test_a_killed_worker_and_a_killed_scheduler_wait_for_nobody(tmp_path: Path) -> None:
    with cluster_of(tmp_path, held=True) as cluster:
        cluster.start()
        cluster.wait_step(12)
        scheduler, worker = cluster.pid_of("sched"), cluster.pid_of("1")
        os.kill(scheduler, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        cluster.go_on()

        assert_done(cluster)
