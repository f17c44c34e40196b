"""Who watches a job that may lose the host of its batch script, without Slurm. With Slurm: tests/cluster/test_slurm.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.launch.slurm import batch_watch

SCONTROL = """#!/bin/bash
[ "$1" = --oneliner ] && { cat "$RECORD"; exit 0; }
echo "${0##*/} $*" >>"$RECORD.done"
[ -e "$RECORD.refused" ] && { echo 'Slurm is busy' >&2; exit 1; }
exit 0
"""
LOST = {
    "JobId": "5",
    "JobState": "RUNNING",
    "Requeue": "1",
    # As Slurm 22.05 says it, when it has given n0 up.
    "NodeList": "n[1-2]",
    "BatchHost": "n0",
}


@pytest.mark.parametrize(
    ("changed", "is_lost"),
    [
        ({}, True),
        ({"NodeList": "n[0-2]"}, False),
        ({"JobState": "COMPLETING"}, False),
        ({"JobState": "PENDING", "NodeList": "(null)", "BatchHost": ""}, False),
        ({"NodeList": "n[1-"}, False),
    ],
)
def test_the_host_of_the_batch_script_is_lost_when_the_job_runs_without_it(
    changed: dict[str, str], is_lost: bool
) -> None:
    assert batch_watch.has_lost_its_script({**LOST, **changed}) is is_lost


def test_where_slurm_says_nothing_no_host_is_lost() -> None:
    assert not batch_watch.has_lost_its_script({})


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tools, found = tmp_path / "bin", tmp_path / "record"
    tools.mkdir()
    for name in ("scontrol", "scancel"):
        (tools / name).write_text(SCONTROL)
        (tools / name).chmod(0o755)
    (tmp_path / "out").touch()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(found))
    return found


def says(record: Path, **changed: str) -> None:
    fields = {**LOST, "StdOut": str(record.with_name("out")), **changed}
    record.write_text(" ".join(f"{name}={value}" for name, value in fields.items()))


def done(record: Path) -> list[str]:
    path = Path(f"{record}.done")
    return path.read_text().splitlines() if path.exists() else []


def test_the_job_is_put_back_and_its_output_says_why(record: Path) -> None:
    says(record)
    assert batch_watch.look(5, 0, 1) == 1
    assert done(record) == ["scontrol requeue 5"]
    said = record.with_name("out").read_text()
    assert said == (
        "n0 was lost, the host of the batch script and of the scheduler: the job goes back into the queue (scontrol requeue 5), and it goes on from what it has saved\n"
    )


def test_a_job_that_may_not_go_back_is_ended(record: Path) -> None:
    """It would keep its hosts to its time limit, and nobody trains there."""
    says(record, Requeue="0", StdOut=str(record.with_name("not here")))
    batch_watch.look(5, 0, 1)
    assert done(record) == ["scancel 5"]
    assert not record.with_name("not here").exists()


def test_a_second_watcher_leaves_it_to_the_first(record: Path) -> None:
    says(record)
    assert batch_watch.look(5, 0, 3) == 1
    says(record, JobState="COMPLETING")
    assert batch_watch.look(5, 1, 3) == 0
    assert not done(record)
    says(record)
    assert batch_watch.look(5, 2, 3) == 3
    assert done(record) == ["scontrol requeue 5"]


def test_what_slurm_refuses_is_said_and_tried_again(record: Path) -> None:
    says(record)
    Path(f"{record}.refused").touch()
    found = batch_watch.look(5, 0, 1)
    batch_watch.look(5, found, 1)
    assert done(record) == ["scontrol requeue 5"] * 2
    assert "that was refused, and is tried again: Slurm is busy" in record.with_name("out").read_text()
