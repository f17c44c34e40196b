"""The rejoin window as it is: 30 seconds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.conftest import Undisturbed
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240), pytest.mark.slow]


def test_eight_workers_one_killed_is_refused_until_thirty_seconds(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, workers=8, window_s=30.0) as cluster:
        cluster.start()
        cluster.wait_step(14, timeout_s=90)
        survivors = {name: process.pid for name, process in cluster.processes.items() if name != "worker_5"}
        cluster.kill_and_relaunch("worker_5")
        cluster.wait_event(EventKind.NODE_ADMITTED, "worker_5", count=2)

        [suspected] = cluster.events(EventKind.NODE_SUSPECTED, "worker_5")
        admitted = cluster.events(EventKind.NODE_ADMITTED, "worker_5")[-1]
        assert 29_950 <= admitted.wall_ms - suspected.wall_ms <= 30_500
        assert (admitted.event.rank, admitted.event.incarnation) == (5, 2)
        refusals = re.findall(
            r"event=refused REJOIN_WINDOW: .*may return in (\d+\.\d) s", cluster.log("worker_5")
        )
        assert len(refusals) == 1, "one line says how long"
        assert 0 < float(refusals[0]) <= 30.0

        cluster.wait_end()
        assert survivors == {name: cluster.processes[name].pid for name in survivors}
        cluster.check_same_as(undisturbed(workers=8))
