"""Where an epoch ends is where passes are counted wrongly: a job that is killed there uses no sample twice and none too few."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

CASES = {
    "saved behind the loop": {"JOB_SAVE_STEPS": "7"},
    "saved at the last step": {"JOB_SAVE_STEPS": "20", "JOB_SAMPLES": "640", "JOB_EPOCHS": "2"},
    "a stream": {"JOB_DATA": "iterable", "JOB_SAVE_STEPS": "7"},
    "in one directory": {"JOB_LAYOUT": "shared", "JOB_SAVE_STEPS": "7"},
}


@pytest.mark.parametrize("victims", [("worker_1",), ("worker_0", "worker_1", "sched")], ids="+".join)
@pytest.mark.parametrize("case", CASES)
def test_a_kill_in_the_evaluation_behind_the_loop_trains_no_more(
    tmp_path: Path, undisturbed: Undisturbed, case: str, victims: tuple[str, ...]
) -> None:
    with Cluster(tmp_path, workers=2, environment={**CASES[case], "JOB_HELD_STEP": "-1"}) as cluster:
        cluster.start()
        cluster.wait(lambda: evaluating(tmp_path) == 2, "evaluation on both ranks")
        cluster.kill_and_relaunch(*victims)
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2, **CASES[case]))


def test_epochs_that_are_added_begin_where_the_last_one_ended(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    more = {"JOB_EPOCHS": "3", "JOB_SAVE_STEPS": "7"}
    with Cluster(
        tmp_path, workers=2, environment={**more, "JOB_EPOCHS": "2", "JOB_HELD_STEP": "-1"}
    ) as cluster:
        cluster.start()
        cluster.wait(lambda: evaluating(tmp_path) == 2, "evaluation on both ranks")
        cluster.kill("worker_0", "worker_1", "sched")
        cluster.go_on()
        for name in ("worker_0", "worker_1", "sched"):
            cluster.launch(name, **more)
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2, **more))


def evaluating(directory: Path) -> int:
    """Ranks that are behind their loop."""
    return len(list(directory.glob("evaluating_*")))
