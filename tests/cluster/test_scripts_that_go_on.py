"""A script may go on when its training is over: evaluate, export. The scheduler has ended by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

LONGER_THAN_ANY_PATIENCE = {"JOB_AFTER_S": "6", "MS_ABORT_TIMEOUT": "1"}
"""A worker waits 2 s for a scheduler that does not answer, and its main thread gets 1 s to come back."""


def test_a_script_that_goes_on_after_its_training_ends_by_itself(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment=LONGER_THAN_ANY_PATIENCE) as cluster:
        cluster.start()
        cluster.wait_end()

        cluster.check_result()
        for name in cluster.names:
            assert "event=exit" not in cluster.log(name)
