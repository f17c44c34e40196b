"""SIGTERM of a process that trains in MindSpore, where a standby is ready: no step is lost, and the bits stay."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.test_drain import check_handed_over
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import START_S, MindSporeCluster

pytestmark = pytest.mark.mindspore


def test_a_rank_is_handed_over_at_a_step_that_its_modelcheckpoint_saves(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment={"MS_STANDBY_NUM": "1"}) as cluster:
        cluster.start()
        cluster.launch("standby_0", MS_STANDBY="1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0", timeout_s=START_S)
        cluster.wait_step(13, timeout_s=START_S)
        cluster.signal("worker_1", signal.SIGTERM)
        check_handed_over(cluster, timeout_s=START_S)
        cluster.check_same_as(undisturbed(workers=2))
