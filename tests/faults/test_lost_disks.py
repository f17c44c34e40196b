"""A host is lost with its disk: its rank gets its checkpoint back from another host, and the job ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.conftest import undisturbed
from tests.cluster.harness import Cluster
from tests.cluster.secured import with_tls
from tests.cluster.undisturbed import Undisturbed
from tests.faults.disks import DiskPerHost, TinyHosts
from tests.faults.hosts import Host, host

__all__ = ["host", "undisturbed"]

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

ONE = {"MS_CHECKPOINT_COPIES": "1", "MS_REJOIN_WINDOW": "0"}
TWO = {**ONE, "MS_CHECKPOINT_COPIES": "2"}


def newest_plan(cluster: Cluster) -> int:
    """The step that the newest plan went back to."""
    return cluster.events(EventKind.PLAN_MADE)[-1].event.step or 0


@pytest.mark.parametrize("tls", [False, True], ids=["token", "tls"])
def test_a_rank_on_an_empty_disk_gets_its_checkpoint_back(tmp_path: Path, *, tls: bool) -> None:
    secure = with_tls(tmp_path, "127.0.0.1", "127.0.0.2") if tls else {}
    with TinyHosts(tmp_path, workers=2, environment={**ONE, **secure}) as cluster:
        cluster.start()
        copied = cluster.wait_copied(2)
        cluster.lose_disk("worker_1")
        cluster.launch("worker_1")
        cluster.wait_step(copied + 20, generation=2)
        assert newest_plan(cluster) >= copied
        assert cluster.events(EventKind.CHECKPOINT_FETCHED, "worker_1")
        cluster.wait_copied(4)
        cluster.finish()
        assert 1 <= len(cluster.copies("worker_0", of="worker_1")) <= 3, "old copies go"


def test_a_damaged_copy_is_refused_and_another_holder_is_asked(tmp_path: Path) -> None:
    with TinyHosts(tmp_path, workers=3, environment=TWO) as cluster:
        cluster.start()
        copied = cluster.wait_copied(2)
        cluster.lose_disk("worker_1")
        for path in cluster.copies("worker_0", of="worker_1"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        cluster.launch("worker_1")
        cluster.wait_step(copied + 20, generation=2)
        assert newest_plan(cluster) >= copied, "the other copy is good"
        assert "sha256" in cluster.reasons(EventKind.COPY_FAILED)
        assert "worker_0" in cluster.reasons(EventKind.COPY_FAILED)
        cluster.finish()


@pytest.mark.slow
def test_a_host_whose_disk_is_lost_goes_on_with_the_same_bits(
    tmp_path: Path, host: Host, undisturbed: Undisturbed
) -> None:
    """PyTorch in two network namespaces; nothing is set: a job on several hosts makes copies by itself."""
    environment = {"MS_REJOIN_WINDOW": "0", "MS_SCHED_HOST": host.scheduler}
    with DiskPerHost(tmp_path, workers=2, environment=environment) as cluster:
        cluster.started_by["worker_1"] = host.prefix
        cluster.start()
        copied = cluster.wait_copied()
        cluster.lose_disk("worker_1")
        cluster.launch("worker_1")
        cluster.wait_end()
        assert newest_plan(cluster) >= copied
        assert cluster.events(EventKind.CHECKPOINT_FETCHED, "worker_1")
        cluster.check_same_as(undisturbed(2))
