"""A worker in a container of its own, whose process id means somebody else here: no proof takes its rank away. Needs root."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.faults.test_network_faults import PATIENT, pass_time
from tests.faults.test_standby_networks import WINDOW_S, launch, start_scheduler, wired
from tests.faults.tiny_cluster import TinyCluster
from tests.needs import needs_root, needs_tool

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.root]

CONTAINERS = {
    "pid namespace": ("--pid", "--mount-proc"),
    # Its start time reads otherwise from here, as that of a process that got the number later.
    "time namespace": ("--time", "--boottime", "1000"),
}


@pytest.mark.parametrize("flags", CONTAINERS.values(), ids=CONTAINERS)
def test_nobody_takes_the_rank_of_a_worker_in_another_container(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    needs_root()
    environment = {**PATIENT, "MS_REJOIN": "proof"}
    with TinyCluster(tmp_path, workers=2, window_s=WINDOW_S, environment=environment) as cluster:
        cluster.started_by["worker_1"] = (
            needs_tool("unshare", "util-linux"),
            "--fork",
            "--kill-child",
            *flags,
        )
        for name in ("worker_0", "standby_0"):
            launch(cluster, name)
        with wired(cluster, "worker_1") as wire:
            start_scheduler(cluster, standbys=1)
            cluster.wait_step(15)
            # Closed, so whoever watches processes looks for it.
            wire.down()
            cluster.wait_event(EventKind.NODE_SUSPECTED, "worker_1")
            pass_time(0.5)
            wire.clear()
            cluster.wait_event(EventKind.NODE_RESUMED, "worker_1")

            cluster.kill("sched")
            cluster.launch("sched", MS_STANDBY_NUM="1")
            cluster.wait_event(EventKind.NODE_RESUMED, "worker_1", count=2)
            cluster.finish()
        assert not cluster.events(EventKind.NODE_LOST)
        assert not cluster.events(EventKind.RANK_TAKEN_OVER)
        assert cluster.generations() == {1}
