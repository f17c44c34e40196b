"""Everything on a host was killed and started again: nobody waits for processes that are known to be dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import clock
from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LONG = {"MS_NODE_TIMEOUT": "900", "JOB_HELD_STEP": "40"}
"""So long a node counts as alive that a restarted scheduler has not heard: no test waits for the end of it."""
KILLED_AT = 15


def kill_everything_and_start_it_again(cluster: SmallCluster) -> None:
    cluster.kill("sched", *cluster.names)
    for name in ("sched", *cluster.names):
        cluster.launch(name)
    cluster.go_on()


def are_proven_dead(cluster: SmallCluster) -> bool:
    """Both were lost because their processes are known to have ended."""
    reasons = [stored.event.reason for stored in cluster.events(EventKind.NODE_LOST)]
    return [reason.endswith("has ended") for reason in reasons] == [True, True]


def test_with_rejoin_proof_a_whole_job_that_was_killed_goes_on_at_once(tmp_path: Path) -> None:
    environment = {**LONG, "MS_REJOIN": "proof"}
    with SmallCluster(tmp_path, window_s=600.0, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(KILLED_AT)
        kill_everything_and_start_it_again(cluster)

        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        refused = [stored.event.reason for stored in cluster.events(EventKind.NODE_REFUSED)]
        assert refused == [], "who comes after a dead process is not refused"
        assert are_proven_dead(cluster), cluster.tails()
        cluster.wait_end()
        cluster.check_result()


def test_by_default_they_wait_out_the_window_and_not_the_lease(tmp_path: Path) -> None:
    window_ms = 4_000
    with SmallCluster(tmp_path, window_s=window_ms / 1000, environment=LONG) as cluster:
        cluster.start()
        cluster.wait_step(KILLED_AT)
        killed_ms = clock.wall_ms()
        kill_everything_and_start_it_again(cluster)

        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        for name in cluster.names:
            # Heard for the last time when the scheduler started that has not heard it any more.
            admitted = cluster.events(EventKind.NODE_ADMITTED, name)[-1]
            assert admitted.event.incarnation == 2
            assert admitted.wall_ms >= killed_ms + window_ms, "the window guards the id, whatever is proven"
        assert are_proven_dead(cluster), cluster.tails()
        cluster.wait_end()
        cluster.check_result()


def test_who_lives_through_a_scheduler_that_is_killed_is_not_disturbed_by_a_proof(tmp_path: Path) -> None:
    environment = {**LONG, "MS_REJOIN": "proof"}
    with SmallCluster(tmp_path, window_s=600.0, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(KILLED_AT)
        survivor = cluster.processes["worker_0"]
        cluster.kill("sched", "worker_1")
        cluster.launch("sched")
        cluster.launch("worker_1")

        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        cluster.go_on()
        assert [stored.event.node_id for stored in cluster.events(EventKind.NODE_LOST)] == ["worker_1"]
        cluster.wait_end()
        assert survivor.returncode == 0, "the same process to the end"
        assert cluster.seen("worker_0")["incarnation"] == 1
        cluster.check_result()
