"""A host is lost with its disk: its rank gets its checkpoint back from another host, and the job ends with the same bits."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import inspected
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
        cluster.wait_event(EventKind.CHECKPOINT_FETCHED, "worker_1")
        cluster.wait_copied(4)
        cluster.finish()
        assert 1 <= len(cluster.copies("worker_0", of="worker_1")) <= 3, "old copies go"
        rows = inspected.answer("checkpoints", str(tmp_path / "recovery"))
        assert ["worker_0"] in [row["copies"] for row in rows if row["rank"] == 1]


def test_a_damaged_copy_is_refused_and_another_holder_is_asked(tmp_path: Path) -> None:
    with TinyHosts(tmp_path, workers=3, environment=TWO) as cluster:
        cluster.start()
        copied = cluster.stop_all_copied()
        cluster.lose_disk("worker_1")
        for path in cluster.copies("worker_0", of="worker_1"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        for name in ("worker_0", "worker_2"):
            cluster.signal(name, signal.SIGCONT)
        cluster.launch("worker_1")
        cluster.wait_step(copied + 20, generation=2)
        assert newest_plan(cluster) >= copied, "the other copy is good"
        cluster.wait(lambda: "worker_0: " in cluster.reasons(EventKind.COPY_FAILED), "its refusal")
        assert "sha256" in cluster.reasons(EventKind.COPY_FAILED)
        cluster.finish()


def test_copies_count_whose_holder_comes_back_under_a_fresh_id(tmp_path: Path) -> None:
    """Everything died, as in a blackout, and one disk is gone."""
    with TinyHosts(tmp_path, workers=2, environment=ONE) as cluster:
        cluster.start()
        copied = cluster.wait_copied(2)
        cluster.kill("worker_0")
        cluster.lose_disk("worker_1")
        for name in cluster.names:
            cluster.launch_in_place_of(name, f"{name}.2")
        cluster.wait_step(copied + 20, generation=2)
        assert newest_plan(cluster) >= copied
        cluster.wait_event(EventKind.CHECKPOINT_FETCHED, "worker_1.2")
        cluster.finish()
        rows = inspected.answer("checkpoints", str(tmp_path / "recovery"))
        assert not any("worker_0" in row["copies"] for row in rows), "another process has its place"


def test_copies_count_where_the_schedulers_store_is_lost_as_well(tmp_path: Path) -> None:
    environment = {**ONE, "MS_NODE_TIMEOUT": "20"}
    with TinyHosts(tmp_path, workers=2, environment=environment) as cluster:
        cluster.start()
        copied = cluster.wait_copied(2)
        cluster.kill("sched")
        cluster.lose_disk("worker_0")
        shutil.rmtree(tmp_path / "recovery")
        cluster.launch("sched", MS_REBUILD_STORE="1")
        cluster.launch("worker_0")
        cluster.wait_step(copied + 20, generation=2)
        assert newest_plan(cluster) >= copied
        cluster.wait_event(EventKind.CHECKPOINT_FETCHED, "worker_0")
        cluster.finish()


class OwnMemory(TinyHosts):
    """Each host has a memory of its own, and saves every third step there."""

    def memory(self, name: str) -> Path:
        """The tmpfs of a host."""
        return self.directory / "memory" / name

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        self.memory(name).mkdir(parents=True, exist_ok=True)
        own = {"MS_MEMORY_CHECKPOINT_PATH": str(self.memory(name)), "MS_MEMORY_CHECKPOINT_STEPS": "3"}
        return super().launch(name, **{**own, **environment})


def test_a_host_that_is_lost_gets_back_what_it_had_in_memory(tmp_path: Path) -> None:
    with OwnMemory(tmp_path, workers=2, environment=ONE) as cluster:
        cluster.start()
        cluster.wait_copied(6)
        cluster.lose_disk("worker_1")
        shutil.rmtree(cluster.memory("worker_1"))
        done = [one.event for one in cluster.events(EventKind.CHECKPOINT_COPIED)]
        copied = max(one.step or 0 for one in done if one.reason == "in memory")
        cluster.launch("worker_1")
        cluster.wait_step(copied + 20, generation=2)
        assert newest_plan(cluster) >= copied
        cluster.wait_event(EventKind.CHECKPOINT_FETCHED, "worker_1")
        left = [one.name for one in cluster.memory("worker_0").glob("*/worker_0.copies.*/*.ckpt")]
        assert len(left) <= 2, "old copies go"
        cluster.finish()
        for name in ("worker_0", "worker_1"):
            assert list(cluster.memory(name).iterdir()) == [], "the job is over"


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
        cluster.wait_event(EventKind.CHECKPOINT_FETCHED, "worker_1")
        cluster.check_same_as(undisturbed(2))
