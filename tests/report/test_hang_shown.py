"""A rank that may hang is on the screen of a running job, with where it is."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from recovery.cli.status_screen import screen
from recovery.core.phases import Phase
from recovery.core.scheduler.views import job_view
from recovery.report.status import status_of_view
from tests.core.test_hang_verdicts import Job


def found(job: Job) -> dict[str, Any]:
    return status_of_view(job_view(job.desk.machine.state, job.desk.now), [], place="here")


def test_it_is_shown_until_it_comes_on(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job()
    job.hang(7)
    shown = found(job)
    Console(width=200).print(screen(shown))
    assert shown["hang"] == {
        "node_id": "worker_1",
        "rank": 1,
        "step": 7,
        "phase": "data",
        "lasting_ms": 6_000,
        "limit_ms": 5_000,
        "left_out": 0,
        "stack": "train.py:7 in read",
    }
    said = "hang        rank 1 may hang: in data behind step 7 for 6.0 s, its limit is 5.0 s; its main thread is at train.py:7 in read"
    assert said in capsys.readouterr().out

    job.beat(job.workers[1], Phase.DATA, 5, step=8)
    assert found(job)["hang"] is None


def test_of_a_collective_that_was_left_out_the_number_is_shown() -> None:
    job = Job(replaces_hung=False)
    for second in range(9):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[0], Phase.COMPUTE, 1_000 * second, step=7, collectives=30)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second, step=8, collectives=29)
    assert (found(job)["hang"]["left_out"], found(job)["hang"]["lasting_ms"]) == (1, 5_000)


def test_a_generation_that_is_over_hangs_no_more() -> None:
    job = Job()
    job.hang(12)
    assert found(job)["hang"] is None
