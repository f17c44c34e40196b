"""What a TrainJob is told: percent, the time that is left, metrics; in the form that the API server takes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from recovery.launch.train_job_status import Goodput, TrainJobStatus
from tests.launch.test_status_line import node, status
from tests.launch.train_job_server import metrics

AT = datetime.datetime(2026, 11, 29, 22, 0, 1, 500_000, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


def told(*views: dict[str, Any], is_over: bool = False, has_finished: bool = False) -> dict[str, Any]:
    """Behind views of every second."""
    found = TrainJobStatus()
    for second, view in enumerate(views):
        found.note(view, 1_000 * (second + 1))
    told: dict[str, Any] = found.body(AT, is_over=is_over, has_finished=has_finished)["trainerStatus"]
    return told


def test_all_that_is_known_is_said_in_the_form_of_the_api() -> None:
    assert told(status(node(0), node(1)), status(node(0, 14), node(1, 13))) == {
        "progressPercentage": 35,
        "estimatedRemainingSeconds": 7,
        "metrics": [
            {"name": "loss", "value": "0.25"},
            {"name": "goodput", "value": "1.0000"},
            {"name": "generation", "value": "2"},
            {"name": "step", "value": "14"},
        ],
        "lastUpdatedTime": "2026-11-29T20:00:01Z",
    }


def test_before_the_first_look_there_is_the_time_alone() -> None:
    assert told() == {"lastUpdatedTime": "2026-11-29T20:00:01Z"}


def test_what_is_not_known_is_left_out() -> None:
    found = told(status(node(0, total_steps=None, loss=None)))
    assert found.keys() == {"metrics", "lastUpdatedTime"}
    assert metrics(found) == {"generation": "2", "step": "10"}


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", -1.5e-300, 0.0])
def test_a_loss_is_a_text_of_any_value(loss: float | str) -> None:
    assert metrics(told(status(node(0, loss=loss))))["loss"] == str(loss)


def test_nobody_knows_when_a_job_ends_that_waits_for_a_rank() -> None:
    waits = status(node(0, 12), node(1, 12, state="lost"), state="interrupted", trains=False, generation=3)
    found = told(status(node(0), node(1)), status(node(0, 12), node(1, 12)), waits)
    assert "estimatedRemainingSeconds" not in found
    assert found["progressPercentage"] == 30
    assert metrics(found)["generation"] == "3"


@pytest.mark.parametrize(("step", "percent"), [(0, 0), (39, 97), (40, 99), (41, 99)])
def test_no_job_is_at_100_before_it_has_finished(step: int, percent: int) -> None:
    assert told(status(node(0, step)))["progressPercentage"] == percent


def test_a_pace_of_years_fits_the_field() -> None:
    views = (status(node(0, step, total_steps=10**15)) for step in (1, 2))
    assert told(*views)["estimatedRemainingSeconds"] == 2**31 - 1


@pytest.mark.parametrize("by_scheduler", [False, True])
def test_a_finished_job_is_at_100_whether_the_scheduler_or_a_worker_said_so(*, by_scheduler: bool) -> None:
    view = status(node(0, 40, total_steps=None), state="finished" if by_scheduler else "running")
    found = told(view, is_over=True, has_finished=not by_scheduler)
    assert (found["progressPercentage"], found["estimatedRemainingSeconds"]) == (100, 0)


def test_a_job_that_ended_otherwise_stays_where_it_is_and_has_no_time_left() -> None:
    found = told(status(node(0)), status(node(0, 20)), is_over=True)
    assert found["progressPercentage"] == 50
    assert "estimatedRemainingSeconds" not in found


def test_goodput_counts_no_time_in_which_steps_were_done_again_or_waited_for() -> None:
    goodput = Goodput()
    assert goodput.note(0, 1, 1_000, trains=False) is None
    assert goodput.note(10, 1, 2_000, trains=True) is None
    assert goodput.note(10, 1, 2_000, trains=True) is None or True
    shares = [
        goodput.note(step, generation, second * 1_000, trains=trains)
        for second, step, generation, trains in (
            (4, 30, 1, True),
            (5, 30, 1, False),
            (6, 20, 2, True),
            (7, 25, 2, True),
            (8, 35, 2, True),
            (9, 35, 2, True),
            (11, 36, 2, True),
        )
    ]
    assert shares == [2 / 3, 2 / 4, 2 / 5, 2 / 6, 3 / 7, 3 / 8, 6 / 10]
