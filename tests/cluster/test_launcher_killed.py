"""Who has begun again in its own process, by exec, still ends with its launcher: the tie is a thread's, and another thread became the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_launcher import assert_nothing_left

pytestmark = pytest.mark.cluster

ENVIRONMENT = {"JOB_DO": "hang@12", "JOB_HELD_STEP": "20", "MS_ABORT_TIMEOUT": "1"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_hung_main_thread_that_was_replaced_ends_with_its_launcher(tmp_path: Path, method: str) -> None:
    with LaunchedCluster(tmp_path, environment=ENVIRONMENT) as cluster:
        cluster.start(f"--start_method={method}")
        cluster.wait((tmp_path / "hangs_at").exists, "hanging ranks")
        cluster.wait(lambda: cluster.step_of_all() == 11, "step 11 of both")
        survivor = cluster.pid_of("0")
        cluster.kill_node("1")
        cluster.wait_step(19, generation=2)
        seen = cluster.seen("0")
        assert (seen["pid"], seen["entries"], seen["generation"]) == (survivor, 1, 2), "replaced in place"

        cluster.kill(LAUNCHER)
        assert_nothing_left(cluster)
        cluster.go_on()
        cluster.start(f"--start_method={method}")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert_nothing_left(cluster)
