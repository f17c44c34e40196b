"""Live rollback under real kills: no step is lost, and the bits are those of the undisturbed run in the same mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

LIVE = {"MS_ROLLBACK": "live"}


def planned(cluster: Cluster) -> tuple[int, str]:
    event = cluster.events(EventKind.PLAN_MADE)[-1].event
    assert event.step is not None, "a plan goes to a step"
    return event.step, event.reason


@pytest.mark.parametrize("keeps", ["", "1"], ids=["built-anew", "kept"])
@pytest.mark.parametrize("name", ["worker_0", "worker_2"])
def test_a_killed_worker_costs_no_step(
    tmp_path: Path, undisturbed: Undisturbed, name: str, keeps: str
) -> None:
    with Cluster(tmp_path, workers=3, environment={**LIVE, "JOB_KEEP": keeps}) as cluster:
        cluster.start()
        cluster.wait_step(25)
        cluster.kill_and_relaunch(name)
        cluster.wait_end()

        step, reason = planned(cluster)
        assert step >= 25, reason
        assert "in its memory" in reason
        [ended] = cluster.events(EventKind.GENERATION_INTERRUPTED)
        assert ended.event.step is not None
        assert step >= ended.event.step, "no survivor's step is lost"
        cluster.check_same_as(undisturbed(workers=3, **LIVE), live=True)
