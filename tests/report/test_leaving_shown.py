"""Who is asked to leave, and within what time, is on the screen of a running job."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from recovery.cli.status_screen import screen
from recovery.core.ids import NodeId
from recovery.core.scheduler.views import job_view
from recovery.report.status import status_of_view
from tests.core.drained import Drained
from tests.core.test_host_leaves import NOTICE_MS, Left
from tests.core.test_job_stop import Stopped, stop


def found(left: Drained) -> dict[str, Any]:
    return status_of_view(job_view(left.desk.machine.state, left.desk.now), [], place="here")


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        (("worker_1",), "worker_1"),
        (("worker_0", "worker_1"), "worker_0, worker_1"),
    ],
)
def test_it_is_on_the_screen_while_it_is_waited_for(
    capsys: pytest.CaptureFixture[str], nodes: tuple[str, ...], named: str
) -> None:
    left = Left(standbys=0)
    assert "leaving" not in shown_of(left, capsys)
    stop(left.desk, within_ms=NOTICE_MS, nodes=tuple(NodeId(name) for name in nodes))
    left.desk.at(left.desk.now + 3_000)
    said = shown_of(left, capsys)
    assert f"leaving     {named}, within 17 s (the launcher at " in said, said
    step = left.saved()
    assert f"all save step {step}" not in shown_of(left, capsys)


def shown_of(left: Drained, capsys: pytest.CaptureFixture[str]) -> str:
    Console(width=250).print(screen(found(left)))
    return capsys.readouterr().out


def test_the_step_at_which_all_save_is_said_once_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    left = Left(standbys=0)
    left.leave()
    for worker in left.workers:
        left.answer(worker, 14)
    step = left.asked(left.zero).step
    assert f"; all save step {step}" in shown_of(left, capsys)


def test_where_a_launcher_ends_the_job_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = Stopped()
    stopped.stop()
    assert "leaving     the whole job, within " in shown_of(stopped, capsys)
