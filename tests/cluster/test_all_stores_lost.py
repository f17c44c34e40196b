"""The whole recovery path is removed under a launcher: the job's checkpoints are all that is left, and nobody starts again beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster

pytestmark = pytest.mark.cluster


def rebuild(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal."""
    command = [sys.executable, "-m", "recovery", "rebuild", str(path), *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_job_whose_stores_are_all_removed_is_refused_a_second_beginning_and_goes_on_from_its_manifests(
    tmp_path: Path,
) -> None:
    path, checkpoints = tmp_path / "recovery", tmp_path / "ckpt"
    with LaunchedCluster(tmp_path, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(29)
        shutil.rmtree(path)
        assert cluster.wait_exit(LAUNCHER) == ROWS["STORE_LOST"].exit_code
        assert "--checkpoints DIR" in cluster.log(LAUNCHER), "the advice names the way that works"

        (tmp_path / "go_on").touch()
        cluster.start()
        assert cluster.wait_exit(LAUNCHER) == ROWS["CHECKPOINTS_UNKNOWN"].exit_code
        assert f"CHECKPOINTS_UNKNOWN: {checkpoints}/" in cluster.log(LAUNCHER)
        assert not list(checkpoints.rglob("small_1-*")), "a second job has begun beside the first"

        assert rebuild(path, "--checkpoints", str(checkpoints)).returncode == ROWS["USAGE"].exit_code
        done = rebuild(path, "--checkpoints", str(checkpoints), "--yes")
        assert "0 (rank 0, run 1, generation 1, job " in done.stdout, done.stderr

        cluster.start()
        cluster.wait_end()
        cluster.check_result()
        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [25]
