"""A process that comes before its predecessor's death is noticed is let in the moment it is."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster
from tests.pace import within

pytestmark = pytest.mark.cluster


def test_who_was_refused_before_the_death_was_noticed_does_not_wait_a_second(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_STEP_MS": "50"}) as cluster:
        cluster.start()
        cluster.wait_step(6)
        former = cluster.processes["worker_1"]
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.NODE_REFUSED, "worker_1")
        former.send_signal(signal.SIGKILL)
        former.wait(10)

        cluster.wait_event(EventKind.NODE_ADMITTED, "worker_1", count=2)
        [suspected] = cluster.events(EventKind.NODE_SUSPECTED, "worker_1")
        admitted = cluster.events(EventKind.NODE_ADMITTED, "worker_1")[-1]
        took_ms = admitted.wall_ms - suspected.wall_ms
        print(f"from the death to the admission: {took_ms} ms")
        assert within(took_ms, 250), "it was told when it asked again"
        assert len(re.findall("event=refused", cluster.log("worker_1"))) == 1
        assert "event=scheduler_lost" not in cluster.log("worker_1"), "on the connection that stood"
        cluster.wait_end()
        cluster.check_result()


def test_a_living_process_keeps_its_id_however_long_another_waits_for_it(tmp_path: Path) -> None:
    environment = {"MS_NODE_TIMEOUT": "2", "JOB_STEP_MS": "100"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(2)
        former = cluster.processes["worker_1"]
        extra = cluster.launch("worker_1")
        cluster.wait(lambda: extra.poll() is not None, "end of the second process", 30)
        assert extra.returncode == 74
        cluster.processes["worker_1"] = former
        cluster.wait_end()
        assert cluster.seen("worker_1")["incarnation"] == 1
        cluster.check_result()
