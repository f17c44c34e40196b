"""Ranks whose state torch.distributed.checkpoint saves into one folder: whatever dies or is damaged, training ends with the same bits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import folder_job, inspected
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed, undisturbed_runs

pytestmark = pytest.mark.cluster


class FolderCluster(Cluster):
    """Workers that run folder_job.py."""

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, folder_job.__file__)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trainings that nothing happens to."""
    return undisturbed_runs(FolderCluster, tmp_path_factory)


def test_a_damaged_folder_takes_every_rank_to_the_one_before(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with FolderCluster(tmp_path, workers=2, environment={"JOB_HELD_STEP": "25"}) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        damaged = cluster.directory / "ckpt" / "step_20" / "__1_0.distcp"
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        cluster.kill_and_relaunch("worker_0")
        cluster.go_on()
        cluster.wait_end()

        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 20, 10]
        assert damaged.name in cluster.log("worker_0") + cluster.log("worker_1")
        same = undisturbed(workers=2)
        both = f"{cluster.tails()}\n--- undisturbed\n{same.tails()}"
        assert cluster.samples() == same.samples(), both
        assert cluster.digests() == same.digests(), both
        left = {one.name for one in (cluster.directory / "ckpt").iterdir()}
        assert left == {
            f"step_{step}{beside}" for step in (10, 20, 30) for beside in ("", ".rank0.json", ".rank1.json")
        }
        _looked_at(cluster.directory)


def _looked_at(directory: Path) -> None:
    """What people are told of it: where it lies, and what is damaged."""
    path, folder = str(directory / "recovery"), directory / "ckpt" / "step_30"
    shown = json.dumps(inspected.answer("checkpoints", path))
    assert f"{folder}/" in shown
    assert inspected.run("verify", path).returncode == 0
    part = folder / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    (directory / "ckpt" / "step_20").rename(directory / "elsewhere")

    done = inspected.run("verify", path)
    assert done.returncode != 0
    # Of step 30 one rank's file, of step 20 the manifests of both.
    assert done.stdout.count("a manifest without its folder") == 2
    assert part.name in done.stdout
