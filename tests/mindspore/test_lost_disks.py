"""A host is lost with its disk under MindSpore: its rank gets MindSpore's own file back from another host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster.undisturbed import Undisturbed
from tests.faults.disks import DiskPerHost
from tests.mindspore.mindspore_cluster import MindSporeCluster, held

pytestmark = pytest.mark.mindspore


class MindSporeHosts(DiskPerHost, MindSporeCluster):
    """Each worker at a loopback address of its own."""

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        if name.startswith("worker"):
            environment = {"MS_WORKER_IP": f"127.0.0.{int(name.rpartition('_')[2]) + 1}", **environment}
        return super().launch(name, **environment)


def test_a_rank_on_an_empty_disk_goes_on_with_the_same_bits(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with MindSporeHosts(
        tmp_path, workers=2, environment={"MS_CHECKPOINT_COPIES": "1", **held(39)}
    ) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COPIED, count=2)
        copied = cluster.wait_copied(2)
        cluster.lose_disk("worker_1")
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        plan = cluster.events(EventKind.PLAN_MADE)[-1].event.step
        assert plan is not None
        assert plan >= copied
        assert cluster.events(EventKind.CHECKPOINT_FETCHED, "worker_1")
        cluster.check_same_as(undisturbed(workers=2))
