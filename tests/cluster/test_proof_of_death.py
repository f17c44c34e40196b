"""Everything on a host was killed and started again: nobody waits for processes that are known to be dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster
from tests.pace import within

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEASE_MS = 30_000
"""MS_NODE_TIMEOUT when nothing is set: so long a node counts as alive that a restarted scheduler has not heard."""
KILLED_AT = 15
WRITTEN_MS = 500


def kill_everything_and_start_it_again(cluster: SmallCluster) -> None:
    cluster.kill("sched", *cluster.names)
    for name in ("sched", *cluster.names):
        cluster.launch(name)


def after_restart_ms(cluster: SmallCluster, kind: EventKind, *, count: int) -> list[int]:
    """When, counted from the start of the second scheduler, the newest events of a kind were written. Starts of workers are not in it."""
    cluster.wait_event(EventKind.PLAN_MADE, count=2, timeout_s=60)
    [restarted] = cluster.events(EventKind.SCHEDULER_RESTARTED)
    return [stored.wall_ms - restarted.wall_ms for stored in cluster.events(kind)[-count:]]


def test_with_rejoin_proof_a_whole_job_that_was_killed_goes_on_at_once(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=30.0, environment={"MS_REJOIN": "proof"}) as cluster:
        cluster.start()
        cluster.wait_step(KILLED_AT)
        kill_everything_and_start_it_again(cluster)

        noticed_ms = after_restart_ms(cluster, EventKind.NODE_LOST, count=2)
        planned_ms = after_restart_ms(cluster, EventKind.PLAN_MADE, count=1)
        print(f"after the scheduler's start: noticed {noticed_ms} ms, planned {planned_ms} ms")
        assert within(max(noticed_ms), 1_000), "it waited for processes that were dead"
        assert max(planned_ms) < LEASE_MS
        refused = [stored.event.reason for stored in cluster.events(EventKind.NODE_REFUSED)]
        assert refused == [], "who comes after a dead process is not refused"
        reasons = [stored.event.reason for stored in cluster.events(EventKind.NODE_LOST)]
        assert [reason.endswith("has ended") for reason in reasons] == [True, True], reasons
        cluster.wait_end()
        cluster.check_result()


def test_by_default_they_wait_out_the_window_and_not_the_lease(tmp_path: Path) -> None:
    window_ms = 4_000
    with SmallCluster(tmp_path, window_s=window_ms / 1000) as cluster:
        cluster.start()
        cluster.wait_step(KILLED_AT)
        kill_everything_and_start_it_again(cluster)

        admitted_ms = after_restart_ms(cluster, EventKind.NODE_ADMITTED, count=2)
        print(f"after the scheduler's start: admitted {admitted_ms} ms")
        # The window begins before the scheduler's start is written down: a slow machine needs a while for it.
        assert min(admitted_ms) >= window_ms - WRITTEN_MS, "the window guards the id, whatever is proven"
        assert max(admitted_ms) < LEASE_MS, "they waited for the lease of processes that were dead"
        assert within(max(after_restart_ms(cluster, EventKind.NODE_LOST, count=2)), 1_000)
        cluster.wait_end()
        cluster.check_result()


def test_who_lives_through_a_scheduler_that_is_killed_is_not_disturbed_by_a_proof(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=30.0, environment={"MS_REJOIN": "proof"}) as cluster:
        cluster.start()
        cluster.wait_step(KILLED_AT)
        survivor = cluster.processes["worker_0"]
        cluster.kill("sched", "worker_1")
        cluster.launch("sched")
        cluster.launch("worker_1")

        [planned_ms] = after_restart_ms(cluster, EventKind.PLAN_MADE, count=1)
        assert planned_ms < LEASE_MS, "it waited for a process that was dead"
        assert [stored.event.node_id for stored in cluster.events(EventKind.NODE_LOST)] == ["worker_1"]
        cluster.wait_end()
        assert survivor.returncode == 0, "the same process to the end"
        assert cluster.seen("worker_0")["incarnation"] == 1
        cluster.check_result()
