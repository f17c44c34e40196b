"""Live rollback under real kills: no step is lost, and the bits are those of the undisturbed run in the same mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

LIVE = {"MS_ROLLBACK": "live"}
STEP = 25
"""It lies between two checkpoints. Behind it all ranks wait in a step that has changed nothing yet."""


def planned(cluster: Cluster) -> tuple[int, str]:
    event = cluster.events(EventKind.PLAN_MADE)[-1].event
    assert event.step is not None, "a plan goes to a step"
    return event.step, event.reason


@pytest.mark.parametrize("keeps", ["", "1"], ids=["built-anew", "kept"])
@pytest.mark.parametrize("name", ["worker_0", "worker_2"])
def test_a_killed_worker_costs_no_step(
    tmp_path: Path, undisturbed: Undisturbed, name: str, keeps: str
) -> None:
    held = {"JOB_KEEP": keeps, "JOB_HELD_BEFORE": str(STEP + 1)}
    with Cluster(tmp_path, workers=3, environment={**LIVE, **held}) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= STEP, "all ranks in one step")
        cluster.kill_and_relaunch(name)
        cluster.go_on()
        cluster.wait_end()

        source = 1 if name == "worker_0" else 0
        assert planned(cluster) == (
            STEP,
            f"rank {source} holds step {STEP} in its memory, and gives it to all",
        )
        cluster.check_same_as(undisturbed(workers=3, **LIVE), live=True)
