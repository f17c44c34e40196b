"""What launchers are shown of lost nodes."""

from __future__ import annotations

from recovery.core.rules import Rules
from recovery.core.views import job_view, lost_view
from tests.core.desk import Desk, full_house


def test_only_the_lost_are_shown_with_their_process_and_why() -> None:
    desk = Desk(Rules(worker_count=2))
    _, second = full_house(desk)
    assert lost_view(desk.cluster.table)["nodes"] == []
    second.die()
    desk.at(20_000)

    [lost] = lost_view(desk.cluster.table)["nodes"]
    pids = {one["node_id"]: one["pid"] for one in job_view(desk.cluster.table, desk.now)["nodes"]}
    assert lost == {"node_id": second.node_id, "pid": pids[second.node_id], "reason": "connection closed"}


def test_a_process_that_is_well_is_heard_after_its_silence_one_wait_and_one_dial() -> None:
    desk = Desk(Rules(worker_count=2, receive_timeout_ms=3_000, backoff_ms_max=1_000))
    assert lost_view(desk.cluster.table)["returns_ms"] == 3_000 + 1_000 + 5_000
