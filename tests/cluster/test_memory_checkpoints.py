"""Checkpoints in memory under real kills: the newest step counts, what a host loses is no fault, and nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.cluster.inspected import run
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SmallCluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

EVERY = 2
HELD = 19
IN_MEMORY, ON_DISK = 18, 15
"""The newest steps that all ranks hold while step 19 is held up; small_job.py saves every fifth step on the disk."""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory on the tmpfs of this host."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="recovery-test-") as directory:
        yield Path(directory)


@contextlib.contextmanager
def held_up(directory: Path, base: Path) -> Iterator[SmallCluster]:
    """Two workers in step 19, who hold step 18 in memory and step 15 on their disks."""
    cluster = SmallCluster(
        directory,
        environment={
            "MS_MEMORY_CHECKPOINT_STEPS": str(EVERY),
            "MS_MEMORY_CHECKPOINT_PATH": str(base),
            "JOB_STEP_MS": "5",
            "JOB_HELD_STEP": str(HELD),
        },
    )
    with cluster:
        cluster.start()
        cluster.wait(
            lambda: (
                # The disk may be later than the memory of a newer step.
                {IN_MEMORY, ON_DISK}
                <= {one.event.step for one in cluster.events(EventKind.CHECKPOINT_COMMITTED)}
            ),
            "commit of the step in memory",
        )
        yield cluster


def planned(cluster: Cluster) -> tuple[int | None, str]:
    event = cluster.events(EventKind.PLAN_MADE)[-1].event
    return event.step, event.reason


def ends_as_undisturbed(cluster: SmallCluster, base: Path) -> None:
    cluster.go_on()
    for name in (*cluster.names, "sched"):
        assert cluster.wait_exit(name) == 0, cluster.tails()
    cluster.check_result()
    assert list(base.iterdir()) == [], "the job is over"


def rows_of(*words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


def test_a_killed_worker_goes_on_from_memory(tmp_path: Path, base: Path) -> None:
    with held_up(tmp_path, base) as cluster:
        rows = rows_of("checkpoints", str(tmp_path / "recovery"))
        assert {(row["step"], row["tier"]) for row in rows if row["step"] >= ON_DISK} == {
            (18, "memory"),
            (16, "memory"),
            (15, "disk"),
        }
        cluster.kill("worker_1")
        assert {file["tier"] for file in rows_of("plan", str(tmp_path / "recovery"))["files"]} == {"memory"}
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)

        assert planned(cluster)[0] == IN_MEMORY
        ends_as_undisturbed(cluster, base)
        assert f"step={IN_MEMORY} path={base}" in cluster.log("worker_1")


def test_a_host_that_loses_its_memory_sends_all_to_the_disk(tmp_path: Path, base: Path) -> None:
    with held_up(tmp_path, base) as cluster:
        cluster.kill("worker_1")
        [lost] = base.glob("recovery-memory-*/run-1-rank-1")
        shutil.rmtree(lost)
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)

        step, reason = planned(cluster)
        assert step == ON_DISK
        assert "rank 1: it was in memory, which its host has lost" in reason
        assert cluster.events(EventKind.CHECKPOINT_PASSED_OVER) == []
        ends_as_undisturbed(cluster, base)


def test_a_changed_bit_in_memory_is_never_loaded(tmp_path: Path, base: Path) -> None:
    with held_up(tmp_path, base) as cluster:
        cluster.kill("worker_1")
        [file] = base.glob(f"recovery-memory-*/run-1-rank-1/*_{IN_MEMORY}.ckpt")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=3)

        assert planned(cluster)[0] == IN_MEMORY - EVERY
        [bad] = cluster.events(EventKind.CHECKPOINT_INVALID)
        assert bad.event.details == str(file)
        ends_as_undisturbed(cluster, base)


def test_all_killed_together_go_on_from_memory(tmp_path: Path, base: Path) -> None:
    with held_up(tmp_path, base) as cluster:
        cluster.kill(*cluster.names, "sched")
        cluster.start()
        cluster.wait_event(EventKind.PLAN_MADE, count=2)

        assert planned(cluster)[0] == IN_MEMORY
        ends_as_undisturbed(cluster, base)


def test_the_model_of_a_real_framework_ends_with_the_same_bits(
    tmp_path: Path, base: Path, undisturbed: Undisturbed
) -> None:
    """PyTorch under gloo: two of four ranks are killed, and all go on from a step that lies in memory alone."""
    settings = {"MS_MEMORY_CHECKPOINT_STEPS": "3", "MS_MEMORY_CHECKPOINT_PATH": str(base)}
    settings["JOB_HELD_STEP"] = "14"
    with Cluster(tmp_path, environment=settings) as cluster:
        cluster.start()
        cluster.wait(lambda: 12 in in_memory(cluster), "commit of step 12 in memory")
        cluster.kill_and_relaunch("worker_1", "worker_3")
        cluster.go_on()
        cluster.wait_end()
        step, _ = planned(cluster)
        assert step == 12
        cluster.check_same_as(undisturbed())
    assert list(base.iterdir()) == []


def in_memory(cluster: Cluster) -> set[int | None]:
    """Steps that are committed in memory."""
    committed = cluster.events(EventKind.CHECKPOINT_COMMITTED)
    return {stored.event.step for stored in committed if stored.event.reason == "in memory"}


def test_a_launcher_that_is_stopped_leaves_nothing_in_memory(tmp_path: Path, base: Path) -> None:
    settings = {
        "MS_MEMORY_CHECKPOINT_STEPS": "2",
        "MS_MEMORY_CHECKPOINT_PATH": str(base),
        "JOB_HELD_STEP": "9",
    }
    with LaunchedCluster(tmp_path, environment=settings) as cluster:
        cluster.start()
        cluster.wait(lambda: in_memory(cluster), "a step in memory")
        assert list(base.iterdir()) != []
        cluster.signal(LAUNCHER, signal.SIGTERM)
        cluster.wait_exit(LAUNCHER)
        assert list(base.iterdir()) == []
