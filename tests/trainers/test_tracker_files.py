"""What a tracker has of the steps before, on a disk that was full, and of a process that goes back."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recovery.training.tracker import Row, TrackedRun
from tests.needs import needs_package
from tests.trainers.test_trackers import mlflow_of, tensorboard_of

pytestmark = pytest.mark.trainers

ROWS = [Row(step, {"loss": 1 / step}, step) for step in range(1, 201)]


def run(step: int, generation: int = 1) -> TrackedRun:
    return TrackedRun("job-1", "job", 1, generation, step)


@contextmanager
def full_behind(file: Path, more: int) -> Iterator[None]:
    """A file takes so many bytes more: the part of a write that fits, and then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_tensorboard_shows_has_no_gap_where_the_disk_was_full(tmp_path: Path) -> None:
    needs_package("tensorboard")
    from recovery.training import tracker_tensorboard

    logged = tracker_tensorboard.begin(run(0), directory=tmp_path / "runs")
    logged.log(ROWS[:2])
    [file] = (tmp_path / "runs" / "job-1").iterdir()
    with full_behind(file, 100), pytest.raises(OSError, match="too large"):
        logged.log(ROWS[2:10])
    logged.log(ROWS[2:])
    logged.close(finished=False)

    assert [step for step, _ in tensorboard_of(tmp_path / "runs")["loss"]] == [row.step for row in ROWS]


def test_the_rows_of_wandb_have_no_torn_line_where_the_disk_was_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needs_package("wandb")
    from recovery.training import tracker_wandb

    file = tmp_path / "wandb-job-1.jsonl"
    logged = tracker_wandb.begin(run(0), directory=tmp_path)
    logged.log(ROWS[:2])
    with full_behind(file, 100), pytest.raises(OSError, match="too large"):
        logged.log(ROWS[2:10])
    logged.log(ROWS[2:])
    logged.close(finished=False)
    assert tracker_wandb._read(file) == ROWS

    # As an earlier release has left it, and a process that was killed.
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:9], lines[9][:20], *lines[10:], b"half a li"]))
    again = tracker_wandb.begin(run(200, 2), directory=tmp_path)
    again.close(finished=False)
    assert tracker_wandb._read(file) == [*ROWS[:9], *ROWS[11:]]
    assert caplog.text.count("event=row_not_read") == 1
    assert "line=10" in caplog.text


class Counting:
    """A client that counts how often a history is asked for."""

    def __init__(self, client: Any) -> None:
        self.client, self.asked = client, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += name == "get_metric_history"
        return getattr(self.client, name)


def test_mlflow_is_asked_for_a_history_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_package("mlflow")
    from recovery.training import tracker_mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(tracker_mlflow, "_newest", {})
    first = tracker_mlflow.begin(run(0), tracking_uri=f"file:{tmp_path}/mlruns")
    client = Counting(first._client)

    def generation(number: int, begin: int, end: int) -> None:
        of = tracker_mlflow._Run(client, first._id, run(begin, number))
        of.log(ROWS[begin:end])

    generation(2, 0, 20)
    generation(3, 10, 30)
    generation(4, 0, 40)
    assert client.asked == 0, "it has logged all of that itself"
    tracker_mlflow._newest.clear()
    generation(5, 35, 50)
    assert client.asked == 1, "another process has"
    generation(6, 40, 50)
    assert client.asked == 1
    generation(7, 10, 60)
    assert client.asked == 2, "it did not look so far back"

    _, history = mlflow_of(tmp_path / "mlruns")
    assert [step for step, _ in history["loss"]] == list(range(1, 61))


def test_values_that_are_too_many_to_remember_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_package("mlflow")
    from recovery.training import tracker_mlflow

    monkeypatch.setattr(tracker_mlflow, "_KEPT", 10)
    values = tracker_mlflow._Values(0, {})
    values.note(ROWS[:15])

    assert values.behind(4) is None
    assert sorted(step for _, step in values.behind(5) or ()) == list(range(6, 16))
