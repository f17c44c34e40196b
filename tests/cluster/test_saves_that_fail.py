"""A save that fails says so where a person looks, whatever failed in it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from recovery.report import stored
from recovery.report.status import status
from tests.cluster import slow_save
from tests.cluster.harness import Cluster
from tests.cluster.small_cluster import LAST_STEP, SCRIPT, SmallCluster

pytestmark = pytest.mark.cluster


def test_ranks_with_more_than_1024_open_files_save_and_come_back(tmp_path: Path) -> None:
    many = {"JOB_OPEN_FILES": "1100", "JOB_EPOCHS": "1", "JOB_HELD_STEP": "25"}
    with Cluster(tmp_path, workers=2, environment=many) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        cluster.go_on()
        cluster.wait_end()

        plans = [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)]
        assert plans == [0, 20]
        assert "event=not_captured" not in cluster.tails()


def with_broken_saves(directory: Path, steps: str, **environment: str) -> SmallCluster:
    """One worker whose saves of these steps are ended by a mistake, in their thread."""
    cluster = SmallCluster(
        directory, workers=1, environment={"JOB_BROKEN_SAVES": steps, "JOB_STEP_MS": "2", **environment}
    )
    shutil.copy(slow_save.__file__, directory / SCRIPT)
    return cluster


def test_a_save_that_a_mistake_ends_is_an_event_and_counted_and_training_goes_on(tmp_path: Path) -> None:
    with with_broken_saves(tmp_path, "10 20", MS_FAILED_SAVES_MAX="2") as cluster:
        cluster.start()
        cluster.wait_end()

        failed = [stored.event for stored in cluster.events(EventKind.CHECKPOINT_NOT_SAVED)]
        assert [(event.step, event.rank) for event in failed] == [(10, 0), (20, 0)]
        assert failed[0].reason == "ValueError: a mistake of the program"
        found = status(stored.read_stored(tmp_path / "recovery"))
        assert (found["not_saved"], found["committed_step"]) == (2, LAST_STEP)


def test_so_many_failed_saves_in_a_row_end_training_by_name(tmp_path: Path) -> None:
    with with_broken_saves(tmp_path, "10 15 20", MS_FAILED_SAVES_MAX="3") as cluster:
        cluster.start()

        assert cluster.wait_exit("worker_0") == ROWS["SAVES_FAILED"].exit_code
        assert "SAVES_FAILED: on this rank 3 saves in a row (MS_FAILED_SAVES_MAX) failed: " in cluster.log(
            "worker_0"
        )
        assert status(stored.read_stored(tmp_path / "recovery"))["not_saved"] == 3


def test_a_job_whose_last_save_failed_does_not_end_with_0_and_goes_on_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    with with_broken_saves(tmp_path, str(LAST_STEP)) as cluster:
        cluster.start()

        assert cluster.wait_exit("worker_0") == ROWS["SAVES_FAILED"].exit_code
        assert "SAVES_FAILED: on this rank the last save of the training failed: " in cluster.log("worker_0")
        assert not cluster.events(EventKind.JOB_FINISHED)
        cluster.launch("worker_0", JOB_BROKEN_SAVES="")
        cluster.wait_end()

        committed = [stored.event.step for stored in cluster.events(EventKind.CHECKPOINT_COMMITTED)]
        assert committed[-1] == LAST_STEP
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == committed[-2]


@pytest.mark.parametrize("face", ["run", "init"])
def test_a_last_save_that_the_disk_does_not_take_is_said_without_what_a_training_that_goes_on_would_do(
    tmp_path: Path, face: str
) -> None:
    held = {"JOB_FACE": face, "JOB_HELD_STEP": str(LAST_STEP - 1), "JOB_STEP_MS": "2"}
    with SmallCluster(tmp_path, workers=1, environment=held) as cluster:
        cluster.start()
        cluster.wait_commit(LAST_STEP - 5)
        directory = tmp_path / "ckpt" / "0"
        directory.rename(tmp_path / "moved away")
        directory.touch()
        cluster.go_on()

        assert cluster.wait_exit("worker_0") == ROWS["SAVES_FAILED"].exit_code
        [said] = [line for line in cluster.log("worker_0").splitlines() if " SAVES_FAILED: " in line]
        assert re.search(
            rf"the last save of the training failed: CHECKPOINT_WRITE: {directory}\S* was not saved \([^()]+\)\. "
            r"Correct that and start the job again: it goes on from the newest checkpoint that all ranks hold\.$",
            said,
        ), said
        [failed] = cluster.events(EventKind.CHECKPOINT_NOT_SAVED)
        assert failed.event.reason.endswith(").")
        assert "training goes on, older checkpoints are untouched: CHECKPOINT_WRITE" in cluster.log(
            "worker_0"
        )
