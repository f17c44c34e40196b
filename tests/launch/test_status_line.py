"""The line at the bottom of a terminal."""

from __future__ import annotations

from typing import Any

from recovery.launch.status_line import Pace, line_of


def status(*steps: int, **fields: Any) -> dict[str, Any]:
    nodes = [{"role": "worker", "state": "live", "step": step} for step in steps]
    return {"nodes": nodes, "world_size": 3, "generation": 2, "state": "running", "reason": "", **fields}


def test_the_line_tells_ranks_step_pace_and_generation() -> None:
    pace = Pace()
    assert line_of(status(10, 10, 9), pace, 1_000) == "3/3 ranks  step 10  0.0 step/s  generation 2  running"
    assert "step 50  20.0 step/s" in line_of(status(50, 50, 50), pace, 3_000)
    assert "20.0 step/s" in line_of(status(50, 50, 50), pace, 3_500), "it stays until the next step"


def test_after_a_rollback_the_pace_waits_for_the_next_step() -> None:
    pace = Pace()
    for step, now_ms in ((10, 1_000), (20, 2_000), (5, 3_000)):
        line_of(status(step), pace, now_ms)
    assert pace.note(5, 4_000) == 10.0
    assert pace.note(8, 5_000) == 1.5


def test_who_is_missing_and_why() -> None:
    nodes = [{"role": "worker", "state": "live", "step": 3}, {"role": "worker", "state": "lost", "step": 3}]
    nodes += [{"role": "pserver", "state": "live", "step": 0}]
    found = status(nodes=nodes, state="interrupted", reason="worker_1 lost: killed by SIGKILL")
    assert line_of(found, Pace(), 1).startswith("1/3 ranks")
    assert line_of(found, Pace(), 1).endswith("interrupted: worker_1 lost: killed by SIGKILL")


def test_standbys_and_ids_of_the_past_are_no_ranks() -> None:
    nodes = [
        {"role": "worker", "state": "live", "step": 3, "rank": 0},
        {"role": "worker", "state": "lost", "step": 3, "rank": 1},
        {"role": "worker", "state": "live", "step": 0, "rank": None},
    ]
    assert line_of(status(nodes=nodes), Pace(), 1).startswith("1/3 ranks")
