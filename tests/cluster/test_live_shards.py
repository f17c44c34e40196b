"""Live rollback of a state that is spread over the ranks and held twice (HSDP): each part comes from a replica, and no step is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_live_rollback import LIVE, planned
from tests.cluster.test_memory_checkpoints import in_memory
from tests.cluster.test_sharded_state import ShardedCluster, undisturbed
from tests.cluster.undisturbed import Undisturbed

__all__ = ["undisturbed"]

pytestmark = pytest.mark.cluster

HSDP = {**LIVE, "JOB_MESH": "hsdp", "JOB_NORM": "layer"}
FSDP = {**HSDP, "JOB_MESH": "fsdp"}
STEP = 13
"""It lies between two checkpoints. Behind it all ranks wait in a step that has changed nothing yet."""
HELD = {"JOB_HELD_BEFORE": str(STEP + 1)}


@pytest.mark.parametrize("keeps", ["", "1"], ids=["built-anew", "kept"])
@pytest.mark.parametrize("names", [("worker_1",), ("worker_0", "worker_3")], ids=["one", "one-of-each-part"])
def test_what_is_held_twice_costs_no_step(
    tmp_path: Path, undisturbed: Undisturbed, names: tuple[str, ...], keeps: str
) -> None:
    held = {"JOB_KEEP": keeps, **HELD}
    with ShardedCluster(tmp_path, workers=4, environment={**HSDP, **held}) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= STEP, "all ranks in one step")
        cluster.kill_and_relaunch(*names)
        cluster.go_on()
        cluster.wait_end()

        step, reason = planned(cluster)
        assert step == STEP
        assert "in their memories, each a part of it, and give it to their replicas" in reason
        cluster.check_same_as(undisturbed(workers=4, **HSDP), live=True)


def test_what_is_held_once_costs_the_steps_since_the_last_one_in_memory(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    memory = {"MS_MEMORY_CHECKPOINT_STEPS": "2", "MS_MEMORY_CHECKPOINT_PATH": str(tmp_path / "memory")}
    (tmp_path / "memory").mkdir()
    with ShardedCluster(tmp_path, workers=2, environment={**FSDP, **memory, **HELD}) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= STEP, "all ranks in one step")
        cluster.wait(lambda: 12 in in_memory(cluster), "commit of step 12 in memory")
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        step, reason = planned(cluster)
        assert step == 12, "newer than what is on the disk"
        assert "no live rollback: rank 0: Its tensors are spread over the ranks" in reason
        assert "event=not_live" in cluster.log("worker_0")
        cluster.check_same_as(undisturbed(workers=2, **FSDP), live=True)


def test_statistics_that_each_rank_has_for_itself_are_named_when_training_begins(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    batch = {**HSDP, "JOB_NORM": "batch"}
    with ShardedCluster(tmp_path, workers=4, environment={**batch, **HELD}) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= STEP, "all ranks in one step")
        assert "statistics that every rank has for itself" in cluster.log("worker_0")
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        step, reason = planned(cluster)
        assert step in (0, 10), "the newest checkpoint, as far as it was on the disks"
        assert "no live rollback: rank 0: model[0].1 (BatchNorm1d) counts statistics" in reason
        cluster.check_same_as(undisturbed(workers=4, **batch), live=True)
