"""A state that is spread over the ranks survives the death of any of them with the same bits, and is read on another mesh."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from typing_extensions import override

from tests.cluster import sharded_job
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed, undisturbed_runs

pytestmark = pytest.mark.cluster


class ShardedCluster(Cluster):
    """Workers that run sharded_job.py."""

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, sharded_job.__file__)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Sharded trainings that nothing happens to."""
    return undisturbed_runs(ShardedCluster, tmp_path_factory)


@pytest.mark.parametrize(("mesh", "workers"), [("fsdp", 2), ("hsdp", 4)])
def test_a_killed_rank_comes_back_to_its_own_shards(
    tmp_path: Path, undisturbed: Undisturbed, mesh: str, workers: int
) -> None:
    with ShardedCluster(
        tmp_path, workers=workers, environment={"JOB_MESH": mesh, "JOB_HELD_STEP": "19"}
    ) as cluster:
        cluster.start()
        cluster.wait_step(14)
        cluster.wait_commit(10)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_step(15, generation=2)
        cluster.go_on()
        cluster.wait_end()

        cluster.check_same_as(undisturbed(workers=workers, JOB_MESH=mesh))
        assert "event=restored rank=1 generation=2 step=10 " in cluster.log("worker_1")
        assert "event=layout_chosen layout=sharded" in cluster.log("worker_0")


@pytest.mark.parametrize(("mesh", "saved_by", "read_by"), [("fsdp", 2, 4), ("tensor", 4, 2)])
def test_another_world_begins_with_what_a_mesh_has_saved(
    tmp_path: Path, undisturbed: Undisturbed, mesh: str, saved_by: int, read_by: int
) -> None:
    saved = undisturbed(workers=saved_by, JOB_MESH=mesh)
    environment = {"JOB_FROM": str(saved.directory / "ckpt")}
    with ShardedCluster(tmp_path, workers=read_by, environment=environment) as cluster:
        cluster.start()
        cluster.wait_end()

    for rank in range(read_by):
        assert (tmp_path / f"began_with_{rank}").read_text() == f"{saved.step()} of {saved_by}"
    expected = torch.load(saved.directory / "whole_ended.pt")
    begun = torch.load(tmp_path / "whole_begun.pt")
    assert begun.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(begun[name], expected[name])]
    assert not different
    assert "event=read_sharded" in cluster.log("worker_0")
