"""What a tracker is told over a rollback, whichever it is; the real ones: tests/trainers/test_trackers.py."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery.errors import SettingError, UsageError
from recovery.training import tracker as trackers
from recovery.training.tracker import Kind, Tracker
from tests.training.test_save_out_of_turn import OneRank


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tracker:
    monkeypatch.setitem(trackers.KINDS, "lines", Kind("tests.training.tracker_lines", "lines"))
    return recovery.Tracker("lines", path=str(tmp_path / "rows"))


def train(tracker: Tracker, begin: int, end: int, *, generation: int = 1, ends: bool = False) -> None:
    """One generation, behind a step."""
    rank = OneRank()
    rank.job, rank.generation, rank.step = "0123456789abcdef", generation, begin
    session: Any = rank
    tracker.on_begin(session)
    for rank.step in range(begin + 1, end + 1):
        rank.loss = rank.step + generation / 10
        tracker.on_step_end(session)
    if ends:
        tracker.on_end(session)
    for close in rank.closers:
        close()


def rows(directory: Path) -> list[tuple[int, float]]:
    lines = (directory / "rows").read_text().splitlines()
    return [(step, values["loss"]) for step, values in map(json.loads, lines)]


def test_each_generation_begins_behind_its_step_and_says_which_one_it_is(
    tracker: Tracker, tmp_path: Path
) -> None:
    train(tracker, 0, 3)
    train(tracker, 2, 4, generation=2, ends=True)
    assert rows(tmp_path) == [(1, 1.1), (2, 2.1), (3, 3.1), (3, 3.2), (4, 4.2)]
    lines = [json.loads(line)[1] for line in (tmp_path / "rows").read_text().splitlines()]
    assert [line.get(trackers.GENERATION) for line in lines] == [1.0, None, None, 2.0, None]
    begun = [(tmp_path / f"begun_{number}").read_text() for number in (1, 2)]
    assert begun == ["0123456789ab-1 0", "0123456789ab-1 2"]
    assert (tmp_path / "ended").read_text() == "True"


def test_only_the_chosen_rank_logs_and_only_every_so_many_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(trackers.KINDS, "lines", Kind("tests.training.tracker_lines", "lines"))
    train(recovery.Tracker("lines", rank=1, path=str(tmp_path / "rows")), 0, 3, ends=True)
    assert list(tmp_path.iterdir()) == []
    train(recovery.Tracker("lines", every_steps=2, path=str(tmp_path / "rows")), 0, 5)
    assert rows(tmp_path) == [(2, 2.1), (4, 4.1)]


def test_a_tracker_that_fails_gets_later_what_it_missed_and_training_goes_on(
    tracker: Tracker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "fails").touch()
    with caplog.at_level(logging.WARNING, "recovery.training"):
        train(tracker, 0, 3)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "event=not_tracked kind=lines waiting=1 lost=0 error=ConnectionError: nobody answers"
    assert len(said) == 2, "it is not asked at every step: now, and in the end"
    (tmp_path / "fails").unlink()
    train(tracker, 2, 3, generation=2)
    assert rows(tmp_path) == [(1, 1.1), (2, 2.1), (3, 3.2)], "what is made again is logged as it is then"


def test_a_run_whose_training_was_over_is_ended_by_who_comes_back(tracker: Tracker, tmp_path: Path) -> None:
    train(tracker, 60, 60, generation=2, ends=True)
    assert (tmp_path / "begun_2").read_text() == "0123456789ab-1 60"
    assert (tmp_path / "ended").read_text() == "True"


def test_what_a_loop_logs_beside_the_loss_belongs_to_its_step(tracker: Tracker, tmp_path: Path) -> None:
    rank = OneRank()
    session: Any = rank
    tracker.on_begin(session)
    tracker.log({"eval/accuracy": 0.5}, rate=0.1)
    rank.step = 1
    tracker.on_step_end(session)
    rank.step = 2
    tracker.on_step_end(session)
    [line] = (tmp_path / "rows").read_text().splitlines()
    assert json.loads(line) == [1, {"eval/accuracy": 0.5, "rate": 0.1, trackers.GENERATION: 1.0}]


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(SettingError, match=r"recovery.Tracker='excel': must be tensorboard, mlflow, wandb"):
        recovery.Tracker("excel")


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    monkeypatch.delitem(sys.modules, trackers.KINDS[kind].module, raising=False)
    with pytest.raises(UsageError, match=r"needs a package that is not installed \(\w+") as refused:
        recovery.Tracker(kind)
    assert f"pip install 'recovery-engine[{kind}]'" in str(refused.value)
