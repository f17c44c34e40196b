"""`recovery nodes` says how far each rank is by the newest of all that is written, not by the scheduler's last write."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from recovery.cli.main import app
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.records import StepRecord
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store.any_records import WALL_MS, generation, job, node


def test_a_node_is_at_the_step_that_it_has_recorded_itself(tmp_path: Path) -> None:
    of_scheduler = SchedulerStore.open(tmp_path)
    worker = node("worker_0", rank=Rank(0), generation=Generation(2))
    of_scheduler.apply([job(2), generation(1), generation(2), worker], wall_ms=WALL_MS)
    of_scheduler.close()
    step = StepRecord(
        node_id=NodeId("worker_0"),
        rank=Rank(0),
        run=RunId(1),
        generation=Generation(2),
        incarnation=Incarnation(1),
        step=225,
        epoch=3,
        step_in_epoch=5,
    )
    own = WorkerStore.open(tmp_path, "worker_0")
    own.apply([step], wall_ms=WALL_MS)
    own.close()

    [row] = json.loads(CliRunner().invoke(app, ["nodes", str(tmp_path), "--json"]).stdout)
    said = CliRunner().invoke(app, ["nodes", str(tmp_path)]).stdout

    assert (row["step"], row["newest_step"]) == (worker.step, 225), "a key keeps its meaning"
    assert "225" in said
