"""SIGTERM of a process that trains in MindSpore, where a standby is ready: no step is lost, and the bits stay."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.test_drain import PATIENT, check_handed_over
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import MindSporeCluster, held

pytestmark = pytest.mark.mindspore


def test_a_rank_is_handed_over_at_a_step_that_its_modelcheckpoint_saves(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    environment = {**PATIENT, **held(16), "MS_STANDBY_NUM": "1"}
    with MindSporeCluster(tmp_path, workers=2, environment=environment) as cluster:
        cluster.start()
        cluster.launch("standby_0", MS_STANDBY="1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(13)
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        check_handed_over(cluster)
        cluster.check_same_as(undisturbed(workers=2))
