"""Where an epoch ends, MindSpore's data sets stand in the next one already."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import ROWS
from tests.cluster.test_epoch_ends import evaluating
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import MindSporeCluster, held

pytestmark = pytest.mark.mindspore

TWO_EPOCHS = {"JOB_EPOCHS": "2", "JOB_SAVE_STEPS": "15", "JOB_STEP_MS": "0"}
"""Of 30 steps; the second save is of an epoch's last step."""


@pytest.mark.parametrize("loop", ["model", "own"])
@pytest.mark.parametrize("held_at", [38, -1])
def test_a_checkpoint_of_an_epoch_s_last_step_is_gone_back_to(
    tmp_path: Path, undisturbed: Undisturbed, loop: str, held_at: int
) -> None:
    settings = {**TWO_EPOCHS, "JOB_LOOP": loop}
    with MindSporeCluster(tmp_path, workers=2, environment={**settings, **held(held_at)}) as cluster:
        cluster.start()
        if held_at < 0:
            cluster.wait(lambda: evaluating(tmp_path) == 2, "end of the loop on both ranks")
        else:
            cluster.wait_step(held_at - 1)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2, **settings))


@pytest.mark.parametrize("loop", ["model", "own"])
def test_an_end_that_is_behind_what_is_done_is_refused_by_name(tmp_path: Path, loop: str) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment={**TWO_EPOCHS, "JOB_LOOP": loop}) as cluster:
        cluster.run()
    # So long the other rank waits; on a busy machine MindSpore's own start has taken more than 10 s of it, and ended by a signal.
    fewer = {"JOB_EPOCHS": "1", "JOB_PLANNED_EPOCHS": "2", "MS_CONTINUE": "1", "MS_TOPO_TIMEOUT": "45"}
    settings = {**TWO_EPOCHS, "JOB_LOOP": loop, **fewer}
    with MindSporeCluster(tmp_path, workers=2, environment=settings) as cluster:
        cluster.start()
        cluster.wait(
            lambda: all(process.poll() is not None for process in cluster.processes.values()), "end of all"
        )
        codes = {process.returncode for process in cluster.processes.values()}

    assert ROWS["USAGE"].exit_code in codes, cluster.tails()
    assert "is less than what this job has done: it stands at step 60" in cluster.tails()
