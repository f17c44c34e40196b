"""Standbys that train in MindSpore, and the launcher's template of a MindSpore script: same bits, and nobody takes a survivor's rank."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import JOB, held

pytestmark = pytest.mark.mindspore


def taken_over(cluster: LaunchedCluster) -> list[tuple[str | None, int | None, str]]:
    """Who took which rank from whom, in order."""
    return [
        (stored.event.node_id, stored.event.rank, stored.event.details)
        for stored in cluster.events(EventKind.RANK_TAKEN_OVER)
    ]


def test_under_the_launcher_workers_and_standby_are_forked_and_the_bits_stay(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    # A survivor makes its imports again, which takes minutes on a busy machine; behind its lease its rank is a standby's.
    with LaunchedCluster(tmp_path, environment={"MS_NODE_TIMEOUT": "600", **held(29)}) as cluster:
        shutil.copy(JOB, tmp_path)
        cluster.start("--start_method=fork", "--standby_num=1", script=JOB.name)
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(13)
        cluster.kill_node("1")
        # What is started again has its imports behind it, so it waits long before the survivors are back.
        cluster.wait_event(EventKind.NODE_READY, "1.2")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        said = cluster.log(LAUNCHER)
        assert "modules in" in said, "the template"
        assert "workers are spawned" not in said
        assert taken_over(cluster) == [("standby_0", 1, "1")]
        assert "start 2" not in cluster.log_of("worker_0"), "a survivor was started again by its launcher"
        expected = undisturbed(workers=2)
        assert cluster.digests() == expected.digests()
        assert cluster.samples() == expected.samples()
