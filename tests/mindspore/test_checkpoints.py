"""Files that MindSpore's own ModelCheckpoint writes, in all its ways of writing them, are what a rollback goes back to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import MindSporeCluster, held

pytestmark = pytest.mark.mindspore

WAYS = {
    "safetensors": {"JOB_CONFIG": json.dumps({"format": "safetensors"})},
    "crc": {"JOB_CONFIG": json.dumps({"crc_check": True})},
    "async": {"JOB_CONFIG": json.dumps({"async_save": True})},
    "encrypted": {"JOB_KEY": "0123456789abcdef"},
    "sink": {"JOB_SINK": "1"},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_saving_can_be_gone_back_to(tmp_path: Path, undisturbed: Undisturbed, way: str) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment={**WAYS[way], **held(39)}) as cluster:
        cluster.start()
        cluster.wait_step(37)
        # Its files are read and reported beside training.
        cluster.wait_commit(20)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step in (20, 30)
        if way == "sink":
            assert cluster.digests() == undisturbed(workers=2).digests()
        else:
            cluster.check_same_as(undisturbed(workers=2))


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_damaged_file_is_refused_and_the_next_older_common_one_is_taken(
    tmp_path: Path, undisturbed: Undisturbed, damage: str
) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment=held(39)) as cluster:
        cluster.start()
        cluster.wait_commit(30)
        cluster.kill("worker_1")
        newest = max(committed(cluster))
        file = checker.saved(tmp_path / "ckpt" / "1")[newest]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        # MindSpore makes them read-only.
        file.chmod(0o600)
        file.write_bytes(content[:-20] if damage == "torn" else content)
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == newest - 10
        # A file of another size is no candidate in the first place.
        if damage == "flipped":
            [invalid] = cluster.events(EventKind.CHECKPOINT_INVALID)
            assert file.name in invalid.event.reason
        cluster.check_same_as(undisturbed(workers=2))


def test_files_of_earlier_incarnations_are_used_and_let_go(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """MindSpore saves as train, train_1, train_2 at the starts of one job, and forgets those of the starts before."""
    with MindSporeCluster(tmp_path, workers=2, environment=held(49)) as cluster:
        cluster.start()
        cluster.wait_step(33)
        cluster.kill_and_relaunch("worker_0")
        cluster.wait_step(45, generation=2)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        cluster.check_same_as(undisturbed(workers=2))
        for rank in (0, 1):
            names = {path.name for path in (tmp_path / "ckpt" / str(rank)).glob("*.ckpt")}
            assert any(name.startswith("train_2-") for name in names), names
            assert len(names) <= 7, f"files of earlier incarnations pile up: {names}"
            manifests = {path.stem for path in (tmp_path / "ckpt" / str(rank)).glob("*.json")}
            assert manifests <= {name.removesuffix(".ckpt") for name in names}, "a manifest outlived its file"


def test_too_few_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    configuration = json.dumps({"keep_checkpoint_max": 1})
    with MindSporeCluster(tmp_path, workers=2, environment={"JOB_CONFIG": configuration}) as cluster:
        cluster.start()
        # The first rank that refuses ends the generation: the other may be replaced before it comes to the same line.
        workers = ("worker_0", "worker_1")
        cluster.wait(lambda: any(cluster.processes[name].poll() is not None for name in workers), "refusal")
        (ended, *_) = (name for name in workers if cluster.processes[name].poll() is not None)
        assert "keep_checkpoint_max" in cluster.log(ended)
        assert cluster.step() == 0


def test_a_second_job_does_not_begin_beside_the_files_of_one_whose_stores_are_lost(tmp_path: Path) -> None:
    with MindSporeCluster(tmp_path, workers=1) as first:
        first.run()
    shutil.rmtree(tmp_path / "recovery")
    files = sorted((tmp_path / "ckpt").rglob("*.ckpt"))

    with MindSporeCluster(tmp_path, workers=1) as second:
        second.start()
        second.wait(lambda: second.processes["worker_0"].poll() is not None, "refusal")
        assert "CHECKPOINTS_UNKNOWN" in second.log("worker_0")
        assert sorted((tmp_path / "ckpt").rglob("*.ckpt")) == files


def committed(cluster: MindSporeCluster) -> set[int]:
    return {stored.event.step or 0 for stored in cluster.events(EventKind.CHECKPOINT_COMMITTED)}
