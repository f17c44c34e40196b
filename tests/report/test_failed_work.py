"""`recovery status` says how many saves, copies and uploads of a run have failed, and why the last one did."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from recovery.cli.main import app
from recovery.cli.source import Source
from recovery.cli.status_screen import screen
from recovery.core.failed_work import FailedWork
from recovery.core.ids import NodeId, RunId
from recovery.core.records import EventKind, EventRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.views import job_view
from recovery.report.status import status_of_view
from recovery.store.repository import SchedulerStore
from tests.core.desk import Desk, running_workers
from tests.store.any_records import WALL_MS, job


def path_with(path: Path, *kinds: EventKind) -> Path:
    store = SchedulerStore.open(path)
    events = (
        EventRecord(
            kind=kind, node_id=NodeId("worker_1"), run=RunId(1), step=10 * number, reason=f"why {number}"
        )
        for number, kind in enumerate(kinds, 1)
    )
    store.apply([job(0), *events], wall_ms=WALL_MS)
    store.close()
    return path


def shown(source: Source) -> str:
    return CliRunner().invoke(app, ["status", str(source)]).stdout


def test_a_stored_path_says_what_failed_and_the_last_reason(tmp_path: Path) -> None:
    saves, copies = [EventKind.CHECKPOINT_NOT_SAVED] * 2, [EventKind.COPY_FAILED] * 3
    path = path_with(tmp_path, *saves, *copies, EventKind.UPLOAD_FAILED)

    found = json.loads(CliRunner().invoke(app, ["status", str(path), "--json"]).stdout)

    assert {field: found[field] for field in FailedWork.__struct_fields__} == {
        "not_saved": 2,
        "not_copied": 3,
        "not_uploaded": 1,
        "last_failed": "worker_1, step 60: why 6",
    }
    said = " ".join(shown(path).split())
    assert "3 copies failed, 1 upload failed, 2 saves failed; the last: worker_1, step 60: why 6" in said


def test_a_path_where_nothing_failed_says_nothing_of_it(tmp_path: Path) -> None:
    assert "failed" not in shown(path_with(tmp_path))


def test_a_running_scheduler_answers_with_the_same_keys_and_an_earlier_release_with_those_it_has() -> None:
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)
    desk.machine.state.checkpoints.failed_work = FailedWork(not_copied=1, last_failed="worker_1, step 5: why")
    view = job_view(desk.machine.state, desk.now)

    found = status_of_view(view, (), place="host:1")
    earlier = {
        key: value for key, value in view.items() if key not in ("not_copied", "not_uploaded", "last_failed")
    }
    of_earlier = status_of_view({**earlier, "not_saved": 4}, (), place="host:1")

    assert (found["not_copied"], found["last_failed"]) == (1, "worker_1, step 5: why")
    assert (of_earlier["not_saved"], of_earlier["not_copied"]) == (4, None)
    assert screen(of_earlier).renderables
