"""A rank of MindSpore that outlived another one has begun again by exec, and still ends with its launcher."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_launcher import assert_nothing_left
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import JOB, held

pytestmark = pytest.mark.mindspore


def test_a_rank_that_went_through_a_recovery_ends_with_its_launcher(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    shutil.copy(JOB, tmp_path)
    with LaunchedCluster(tmp_path, environment={"MS_NODE_TIMEOUT": "60", **held(39)}) as cluster:
        cluster.start(script=JOB.name)
        cluster.wait_step(25)
        cluster.wait_commit(20)
        survivor = cluster.pid_of("0")
        cluster.kill_node("1")
        cluster.wait_step(38, generation=2)
        assert cluster.pid_of("0") == survivor, "replaced in place"

        cluster.kill(LAUNCHER)
        assert_nothing_left(cluster)
        cluster.go_on()
        cluster.start(script=JOB.name)

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_same_as(undisturbed(workers=2))
        assert_nothing_left(cluster)
