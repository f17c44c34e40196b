"""`recovery status` says how often a run was asked to let ranks go, or to end: that uses up no restart, so nothing else counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recovery.cli.main import app
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from recovery.core.scheduler.views import job_view
from recovery.report.status import status_of_view
from tests.core.desk import Desk, running_workers
from tests.report.test_failed_work import path_with, shown


@pytest.mark.parametrize(("count", "said"), [(1, "once"), (2, "2 times")])
def test_a_stored_path_says_how_many_there_were(tmp_path: Path, count: int, said: str) -> None:
    path = path_with(tmp_path, *[EventKind.DRAIN_BEGUN, EventKind.DRAIN_ENDED] * count)

    assert json.loads(CliRunner().invoke(app, ["status", str(path), "--json"]).stdout)["notices"] == count
    assert f"notices {said} ranks, or the whole job, were asked to leave" in " ".join(shown(path).split())


def test_a_path_without_one_says_nothing_of_it(tmp_path: Path) -> None:
    assert "notices" not in shown(path_with(tmp_path))


def test_a_running_scheduler_answers_with_the_same_key_and_an_earlier_release_with_none() -> None:
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)
    desk.machine.state.notices = 3
    view = job_view(desk.machine.state, desk.now)
    earlier = {key: value for key, value in view.items() if key != "notices"}

    assert status_of_view(view, (), place="host:1")["notices"] == 3
    assert status_of_view(earlier, (), place="host:1")["notices"] is None
