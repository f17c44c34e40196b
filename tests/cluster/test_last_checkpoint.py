"""What the last step saved is committed when the job has finished, and its end is quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.report import stored
from recovery.report.status import status
from tests.cluster.small_cluster import LAST_STEP, SmallCluster

pytestmark = [pytest.mark.cluster]


@pytest.mark.parametrize("number", range(3))
def test_a_finished_job_has_committed_its_last_step(tmp_path: Path, number: int) -> None:
    with SmallCluster(tmp_path, workers=3, environment={"JOB_STEP_MS": "2"}) as cluster:
        cluster.start()
        cluster.wait_end()
        committed = [
            stored_event.event.step for stored_event in cluster.events(EventKind.CHECKPOINT_COMMITTED)
        ]

        assert max(step for step in committed if step is not None) == LAST_STEP
        found = status(stored.read_stored(tmp_path / "recovery"))
        assert (found["newest_step"], found["steps_since_checkpoint"]) == (LAST_STEP, 0)
        assert "store_failed" not in cluster.tails()
