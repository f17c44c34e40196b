"""A launcher that is asked to stop has a MindSpore job saved first, by its own ModelCheckpoint: the next start goes on at the step."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_drain import steps_lost
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import JOB

pytestmark = pytest.mark.mindspore


def test_a_job_that_was_stopped_goes_on_at_the_step_with_the_same_bits(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with LaunchedCluster(tmp_path, environment={"MS_NODE_TIMEOUT": "60"}) as cluster:
        shutil.copy(JOB, tmp_path)
        cluster.start(script=JOB.name)
        cluster.wait_step(13)
        cluster.signal(LAUNCHER, signal.SIGTERM)
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGTERM, cluster.tails()
        [step] = re.findall(r"saved at step ([0-9]+): the same command", cluster.log(LAUNCHER))
        cluster.start(script=JOB.name)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, int(step)]
        assert steps_lost(cluster) == 0
        cluster.check_same_as(undisturbed(workers=2))
