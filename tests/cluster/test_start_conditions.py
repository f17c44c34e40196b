"""A rank whose process runs under other conditions than the one that saved: the next one says so by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT

pytestmark = pytest.mark.cluster


def test_who_takes_up_a_checkpoint_of_another_number_of_threads_says_so(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_HELD_STEP": "14"}) as cluster:
        script = tmp_path / SCRIPT
        threads = '{"torch": "2.13", "torch threads": os.environ["TORCHELASTIC_RESTART_COUNT"]}'
        script.write_text(
            script.read_text().replace('"""There is no framework."""\n        return {}', f"return {threads}")
        )
        cluster.start()
        cluster.wait_step(12)
        cluster.wait_commit(10)
        cluster.kill_node("1")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        said = "event=conditions_differ rank=1 step=10 torch threads 1, 0 when it was saved: "
        assert said in cluster.log_of("worker_1")
        assert "conditions_differ" not in cluster.log_of("worker_0")
