"""A host that died whole and stood dead: what is reported of it, then and afterwards, is what the step logs say."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from recovery.core.records import EventKind
from recovery.store.reader import read_notes
from tests.cluster import checker
from tests.cluster.inspected import answer, run
from tests.cluster.small_cluster import LAST_STEP, SmallCluster
from tests.report import step_checker

pytestmark = pytest.mark.cluster

HEARTBEAT_S = 1
DEAD_S = 15.0
STEP_MS = 100
ENVIRONMENT = {
    "JOB_STEP_MS": str(STEP_MS),
    "MS_NODE_TIMEOUT": "120",
    "MS_RETRY_INTERVAL_LOWER": "1",
    "MS_RETRY_INTERVAL_UPPER": str(HEARTBEAT_S),
}
LEAST_MS = 7_000
"""How far two figures may be apart: a heartbeat, and what a busy machine is late. Half of the time that must not be counted as training."""


def logged(cluster: SmallCluster) -> list[dict[str, Any]]:
    return checker.lines(cluster.directory / "steps.jsonl")


def has_noted(cluster: SmallCluster, step: int) -> bool:
    noted = [read_notes(cluster.directory / "recovery", name).step for name in cluster.names]
    return all(one is not None and one.record.step == step for one in noted)


def check_figures(cluster: SmallCluster) -> dict[str, Any]:
    """The product's timeline against the step logs, generation by generation."""
    timeline: dict[str, Any] = answer("timeline", str(cluster.directory / "recovery"))
    lines = logged(cluster)
    expected = step_checker.figures(lines, ranks=2, pause_ms=2_000)
    found = {one["generation"]: one for one in timeline["by_generation"]}
    assert set(expected) <= set(found)
    for generation, figures in expected.items():
        assert abs(found[generation]["useful_ms"] - figures.useful_ms) < LEAST_MS, (
            generation,
            figures,
            found,
        )
    assert abs(timeline["useful_ms"] - sum(one.useful_ms for one in expected.values())) < LEAST_MS * len(
        expected
    )
    lost = step_checker.lost_steps(expected, lines)
    for recovery in timeline["recoveries"]:
        apart = abs(recovery["lost_steps"] - lost[recovery["generation"]])
        assert apart * STEP_MS <= 1_000 * HEARTBEAT_S + STEP_MS, (recovery, lost)
    return timeline


def test_a_host_that_stood_dead_is_not_reported_as_training(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery")
    with SmallCluster(tmp_path, environment={**ENVIRONMENT, "JOB_HELD_STEP": "34"}) as cluster:
        cluster.start()
        cluster.wait_step(33)
        cluster.wait(lambda: has_noted(cluster, 33), "note of step 33 by both")
        cluster.kill("sched", "worker_0", "worker_1")
        died = time.monotonic()

        found = answer("status", path)
        assert found["workers_by_state"] == {"not running": 2}
        assert [(row["rank"], row["process"]) for row in found["ranks"]] == [
            (0, "not running"),
            (1, "not running"),
        ]
        assert [(row["step"], row["known_by"]) for row in found["ranks"]] == 2 * [(33, "own notes")]
        assert found["newest_step"] == 33
        assert found["steps_since_checkpoint"] == found["newest_step"] - found["committed_step"]
        assert "live" not in run("status", path).stdout.partition("last events")[0]
        assert {row["state"] for row in answer("nodes", path)} == {"not running"}

        cluster.go_on()
        cluster.wait(lambda: time.monotonic() - died > DEAD_S, "the time of being dead")
        cluster.start()
        cluster.wait_end()
        cluster.check_result()

        timeline = check_figures(cluster)
    for spans in timeline["lanes"].values():
        unknown = [span["end_ms"] - span["begin_ms"] for span in spans if span["doing"] == "unknown"]
        assert sum(unknown) >= 1_000 * (DEAD_S - 2 * HEARTBEAT_S), spans
    assert timeline["unknown_ms"] >= 1_000 * (DEAD_S - 2 * HEARTBEAT_S)
    [recovery] = timeline["recoveries"]
    assert recovery["unknown_ms"] >= 1_000 * (DEAD_S - 2 * HEARTBEAT_S)
    assert recovery["lost_steps"] == 3, "from step 33 to the common checkpoint of step 30"


def test_a_restarted_scheduler_tells_how_far_the_ranks_are(tmp_path: Path) -> None:
    held = {**ENVIRONMENT, "JOB_HELD_STEP": "34", "JOB_STEP_MS": "20"}
    with SmallCluster(tmp_path, environment=held) as cluster:
        cluster.start()
        cluster.wait_step(33)
        # Some rank is there; the one that is stopped must be, too.
        cluster.wait(lambda: has_noted(cluster, 33), "note of step 33 by both")
        cluster.signal("worker_1", signal.SIGSTOP)
        cluster.kill("sched")
        dead = answer("status", str(tmp_path / "recovery"))
        assert dead["workers_by_state"] == {"unheard": 2}, "their processes run, and nobody hears them"
        cluster.launch("sched")
        cluster.wait_event(EventKind.NODE_RESUMED, "worker_0")

        found = answer("status", str(tmp_path / "recovery"))
        assert found["workers_by_state"] == {"live": 1, "suspect": 1}
        assert found["lost"][0]["reason"] == "not heard since the scheduler restarted"
        cluster.signal("worker_1", signal.SIGCONT)
        cluster.wait_event(EventKind.NODE_RESUMED, "worker_1")
        here, belongs = (
            f"--connect=127.0.0.1:{cluster.port}",
            {"MS_RECOVERY_PATH": str(tmp_path / "recovery")},
        )

        def steps() -> list[tuple[int, int]]:
            asked = answer("status", here, environment=belongs)
            return [(row["rank"], row["step"]) for row in asked["ranks"]]

        # Its first heartbeat says how far it is.
        cluster.wait(lambda: steps() == [(0, 33), (1, 33)], "the step of both")
        assert answer("status", here, environment=belongs)["newest_step"] == 33
        found = answer("status", str(tmp_path / "recovery"))
        assert [(row["rank"], row["step"]) for row in found["ranks"]] == [(0, 33), (1, 33)]
        assert found["steps_since_checkpoint"] == 3
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
        assert cluster.step() == LAST_STEP
