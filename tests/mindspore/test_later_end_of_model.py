"""MindSpore's same command with another end than last time: refused by name, and what the refusal names goes on, with the bits of a straight run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from recovery.errors import ROWS
from recovery.report.stored import read_stored
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import JOB

pytestmark = pytest.mark.mindspore

PLANNED = {"JOB_PLANNED_EPOCHS": "3", "JOB_SAVE_STEPS": "15", "JOB_STEP_MS": "0"}
BEFORE, LATER, EARLIER = "2", "3", "1"
"""Epochs of 30 steps."""


def ended(directory: Path, loop: str, epochs: str, *flags: str) -> tuple[int, str]:
    """Start the command with so many epochs; its exit code, and what this start has said."""
    environment = {"MS_NODE_TIMEOUT": "60", **PLANNED, "JOB_LOOP": loop, "JOB_EPOCHS": epochs}
    log = directory / f"{LAUNCHER}.log"
    before = len(log.read_text(errors="replace")) if log.exists() else 0
    with LaunchedCluster(directory, environment=environment) as cluster:
        cluster.start(*flags, script=JOB.name)
        return cluster.wait_exit(LAUNCHER), cluster.log(LAUNCHER)[before:]


@pytest.mark.parametrize("loop", ["model", "own"])
def test_a_job_s_end_moves(tmp_path: Path, undisturbed: Undisturbed, loop: str) -> None:
    shutil.copy(JOB, tmp_path)
    code, said = ended(tmp_path, loop, BEFORE)
    assert code == 0, said

    code, said = ended(tmp_path, loop, LATER)
    assert code == 22, said
    assert "its job has finished (run 1), its checkpoint of step 60 is there" in said
    [flag] = re.findall(r"(\S+) goes on from step 60, to a later end", " ".join(said.split()))

    code, said = ended(tmp_path, loop, EARLIER, flag)
    assert code == ROWS["USAGE"].exit_code, said
    assert "is less than what this job has done: it stands at step 60" in said
    assert "Give a later end" in said

    code, said = ended(tmp_path, loop, LATER, flag)
    assert code == 0, said
    assert read_stored(tmp_path / "recovery").job.run == 1
    with LaunchedCluster(tmp_path) as cluster:
        cluster.check_same_as(undisturbed(workers=2, **PLANNED, JOB_LOOP=loop, JOB_EPOCHS=LATER))
