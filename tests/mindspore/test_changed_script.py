"""A job that goes on with another script, other rates or other batches says so by name, with Model and with a loop of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import MindSporeCluster, held

pytestmark = pytest.mark.mindspore

TWO_EPOCHS = {"JOB_EPOCHS": "2", "JOB_SAVE_STEPS": "15", "JOB_STEP_MS": "0"}
"""Of 60 steps of the one rank."""
LARGER = {"JOB_BATCH": "8", "JOB_PLANNED_EPOCHS": "4"}
"""With as many rates."""


def goes_on(cluster: MindSporeCluster, behind: int, **changed: str) -> None:
    """The rank dies behind this step, which is on its disk, and is started again with these variables."""
    cluster.start()
    cluster.wait_commit(behind)
    cluster.kill("worker_0")
    cluster.launch("worker_0", **changed)
    cluster.go_on()


@pytest.mark.parametrize("loop", ["model", "own"])
def test_another_rate_is_said_and_taken_where_it_is_asked_for(
    tmp_path: Path, undisturbed: Undisturbed, loop: str
) -> None:
    settings = {**TWO_EPOCHS, "JOB_LOOP": loop}
    with MindSporeCluster(tmp_path, workers=1, environment={**settings, **held(50)}) as cluster:
        goes_on(cluster, 45, JOB_RATE="0.01")
        cluster.wait_end()
        said = "event=changed_since_checkpoint optimizer.learning_rate was built as 120 values (0.02 to "
        assert said in cluster.log("worker_0")
        cluster.check_same_as(undisturbed(workers=1, **settings))

    # A later end, which needs more rates than the checkpoint has.
    later = {
        "JOB_EPOCHS": "3",
        "MS_CONTINUE": "1",
        "JOB_OVERRIDE": json.dumps({"optimizer": ["learning_rate"]}),
    }
    with MindSporeCluster(tmp_path, workers=1, environment={**settings, **later}) as longer:
        longer.run()
        said = "event=overridden optimizer.learning_rate was built as 120 values (0.02 to "
        assert said in longer.log("worker_0")
        assert longer.step() == 180


@pytest.mark.parametrize("loop", ["model", "own"])
def test_batches_of_another_size_are_refused_within_an_epoch(tmp_path: Path, loop: str) -> None:
    settings = {**TWO_EPOCHS, "JOB_LOOP": loop}
    with MindSporeCluster(tmp_path, workers=1, environment={**settings, **held(50)}) as cluster:
        goes_on(cluster, 45, **LARGER)
        cluster.wait(lambda: cluster.processes["worker_0"].poll() is not None, "end of the rank")
        assert "batch_size was 4 and is 8" in cluster.log("worker_0")
        assert "batch 45 of epoch 1, where the checkpoint stands, is another place" in cluster.log("worker_0")


@pytest.mark.parametrize("loop", ["model", "own"])
def test_batches_of_another_size_are_taken_within_an_epoch_where_it_is_asked_for(
    tmp_path: Path, loop: str
) -> None:
    override = json.dumps({"dataset": ["batch_size"]})
    settings = {**TWO_EPOCHS, "JOB_LOOP": loop, "JOB_OVERRIDE": override}
    with MindSporeCluster(tmp_path, workers=1, environment={**settings, **held(40)}) as cluster:
        goes_on(cluster, 30, **LARGER)
        cluster.wait_end()
        assert "event=pass_redivided epoch=1 batch_size was 4 and is 8" in cluster.log("worker_0")
        (used,) = cluster.samples()
        assert max(used) == 75
        assert sorted(row for step in range(1, 46) for row in used[step]) == list(range(240))


@pytest.mark.parametrize("loop", ["model", "own"])
def test_batches_of_another_size_are_taken_from_the_next_epoch_on(tmp_path: Path, loop: str) -> None:
    settings = {**TWO_EPOCHS, "JOB_LOOP": loop}
    with MindSporeCluster(tmp_path, workers=1, environment={**settings, **held(61)}) as cluster:
        goes_on(cluster, 60, **LARGER)
        cluster.wait_end()
        assert "event=division_changed epoch=2 batch_size was 4 and is 8" in cluster.log("worker_0")
        (used,) = cluster.samples()
        assert max(used) == 90
        assert sorted(row for step in range(61, 91) for row in used[step]) == list(range(240))
