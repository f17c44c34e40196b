"""Ranks that write one state together, into one directory: whatever dies or is damaged, training ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import FileRole
from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

SHARED = {"JOB_LAYOUT": "shared", "JOB_EPOCHS": "1"}
"""38 steps of two ranks, 26 of three."""


def _shared(cluster: Cluster) -> Path:
    return cluster.directory / "ckpt" / "shared"


def _steps_of(directory: Path, rank: int) -> dict[int, Path]:
    """The rank's parts by step."""
    found = [manifests.read_manifest(path) for path in directory.glob(f"train.rank{rank}-*.json")]
    return {one.step: directory / one.file for one in found}


def test_ranks_that_are_killed_read_what_the_others_have_written(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    environment = {**SHARED, "JOB_OWN": "per_rank", "JOB_HELD_STEP": "19"}
    with Cluster(tmp_path, workers=3, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(14)
        cluster.wait_commit(10)
        cluster.kill_and_relaunch("worker_0", "worker_2")
        cluster.go_on()
        cluster.wait_end()

        cluster.check_same_as(undisturbed(workers=3, JOB_EPOCHS="1", JOB_OWN="per_rank"))
        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 10]
        assert not list(_shared(cluster).glob(".*")), "notes or temporary files were left"
        for step, path in _steps_of(_shared(cluster), 0).items():
            roles = [one.role for one in manifests.read_manifest(path.with_suffix(".json")).files]
            assert roles == [FileRole.PART, FileRole.SIDE], step


def test_a_rank_that_dies_between_the_saves_of_two_ranks_costs_that_step(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, workers=2, environment=SHARED) as cluster:
        for name, held_save in (("worker_0", "0"), ("worker_1", "2")):
            cluster.launch(name, JOB_HELD_SAVE=held_save)
        cluster.launch("sched")
        # That rank sits in its save of step 20, and the other one's is published.
        cluster.wait(lambda: 20 in _steps_of(_shared(cluster), 0), "rank 0's part of step 20")
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_end()
        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 10]
        cluster.check_same_as(undisturbed(workers=2, JOB_EPOCHS="1"))


def test_a_damaged_part_takes_every_rank_to_the_step_before(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, workers=2, environment={**SHARED, "JOB_HELD_STEP": "27"}) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        part = _steps_of(_shared(cluster), 1)[20]
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
        cluster.kill_and_relaunch("worker_0")
        cluster.go_on()
        cluster.wait_end()

        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 20, 10]
        assert part.name in cluster.log("worker_0") + cluster.log("worker_1")
        cluster.check_same_as(undisturbed(workers=2, JOB_EPOCHS="1"))


def _await_exit(cluster: Cluster, code: int) -> None:
    cluster.start()
    cluster.wait(lambda: code in [one.poll() for one in cluster.processes.values()], f"exit code {code}")


def test_a_part_that_differs_between_ranks_is_named(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2, environment={**SHARED, "JOB_OWN": "drifts"}) as cluster:
        _await_exit(cluster, ROWS["CHECKPOINT_STATE"].exit_code)
        assert "own: it is not the same on rank" in cluster.log("worker_0") + cluster.log("worker_1")
        assert "per_rank=['own']" in cluster.log("worker_0") + cluster.log("worker_1")
        assert not cluster.events(EventKind.CHECKPOINT_COMMITTED)


def test_directories_that_are_not_shared_are_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2, environment={**SHARED, "JOB_LAYOUT": "apart"}) as cluster:
        _await_exit(cluster, ROWS["CHECKPOINT_NOT_SHARED"].exit_code)
        assert not list((tmp_path / "ckpt").glob("*/*.ckpt"))
