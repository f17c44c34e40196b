"""A process that comes before its predecessor's death is noticed is let in the moment it is."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster


def test_who_was_refused_before_the_death_was_noticed_is_told_and_need_not_ask_again(tmp_path: Path) -> None:
    environment = {"JOB_HELD_STEP": "30", "MS_NODE_TIMEOUT": "120"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(6)
        former = cluster.processes["worker_1"]
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.NODE_REFUSED, "worker_1")
        # While it stands it cannot ask.
        cluster.signal("worker_1", signal.SIGSTOP)
        former.send_signal(signal.SIGKILL)
        former.wait(60)

        cluster.wait_event(EventKind.NODE_ADMITTED, "worker_1", count=2)
        [suspected] = cluster.events(EventKind.NODE_SUSPECTED, "worker_1")
        assert suspected.event.reason == "connection closed"
        cluster.signal("worker_1", signal.SIGCONT)
        cluster.wait(lambda: "event=admitted incarnation=2" in cluster.log("worker_1"), "its answer")
        assert len(re.findall("event=refused", cluster.log("worker_1"))) == 1
        assert "event=scheduler_lost" not in cluster.log("worker_1"), "on the connection that stood"
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_a_living_process_keeps_its_id_however_long_another_waits_for_it(tmp_path: Path) -> None:
    # The second process gives up when the lease and the grace are over: a short lease ends the wait.
    environment = {
        "MS_NODE_TIMEOUT": "12",
        "MS_RETRY_INTERVAL_LOWER": "1",
        "MS_RETRY_INTERVAL_UPPER": "1",
        "JOB_HELD_STEP": "30",
    }
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(2)
        former = cluster.processes["worker_1"]
        extra = cluster.launch("worker_1")
        cluster.wait(lambda: extra.poll() is not None, "end of the second process")
        assert extra.returncode == 74
        cluster.processes["worker_1"] = former
        cluster.go_on()
        cluster.wait_end()
        assert cluster.seen("worker_1")["incarnation"] == 1
        cluster.check_result()
