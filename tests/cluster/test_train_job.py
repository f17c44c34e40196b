"""A job in a TrainJob of Kubeflow tells the TrainJob how far it is, whatever dies meanwhile. Real launchers, real HTTPS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from recovery import clock
from tests.cluster import small_job
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT
from tests.launch.train_job_server import TOKEN, Controller, controller, metrics

__all__ = ["controller"]

pytestmark = pytest.mark.cluster


def test_a_job_is_told_of_before_and_behind_deaths_and_at_its_end(
    tmp_path: Path, controller: Controller
) -> None:
    environment = {**controller.variables, "JOB_HELD_FIRST": "10", "JOB_HELD_STEP": "40"}
    begun_ms = clock.monotonic_ms()
    with LaunchedCluster(tmp_path, environment=environment) as cluster:

        def generation() -> int:
            return max((int(metrics(one).get("generation", 0)) for one in controller.statuses), default=0)

        cluster.start()
        cluster.wait(lambda: "is tried again" in cluster.log(LAUNCHER), "word that nobody listens")
        controller.listen()
        cluster.wait(lambda: generation() == 1, "the first generation's status")
        assert psutil.Process(cluster.pid_of("0")).environ()["DISABLE_KUBEFLOW_INTEGRATION"] == "TRUE"
        cluster.wait_step(9)
        cluster.kill_node("1")
        (tmp_path / "go_on_first").touch()
        cluster.wait(lambda: generation() == 2, "the status behind the death of a worker")
        cluster.kill_node("sched")
        posted = len(controller.statuses)
        cluster.wait(lambda: len(controller.statuses) > posted + 1, "two behind that of the scheduler")
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert cluster.log(LAUNCHER).count("is tried again") == 1
        assert TOKEN not in cluster.log(LAUNCHER)
    percents = [one.get("progressPercentage", 0) for one in controller.statuses]
    assert percents[-1] == 100
    assert 100 not in percents[:-1]
    assert controller.statuses[-1]["estimatedRemainingSeconds"] == 0
    # The first, and one every 5 s, and the last.
    assert len(controller.statuses) <= (clock.monotonic_ms() - begun_ms) / 5_000 + 2


def test_a_server_that_refuses_ends_no_job_of_the_run_command(tmp_path: Path, controller: Controller) -> None:
    controller.listen()
    controller.answer = (403, {"message": "Forbidden"})
    shutil.copy(small_job.__file__, tmp_path / SCRIPT)
    line = [shutil.which("recovery", path=str(Path(sys.executable).parent)) or "recovery", "run"]
    line += ["--standalone", "--nproc-per-node=1", SCRIPT]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
    done = subprocess.run(
        line,
        cwd=tmp_path,
        env={**kept, **controller.variables, "JOB_EPOCHS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "it answers 403: Forbidden; it is tried again" in said
    assert "the end was not posted to the TrainJob: 100 % is not in its status" in said
    assert controller.statuses[-1]["progressPercentage"] == 100
