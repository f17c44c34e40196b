"""MindSpore under `recovery msrun`: the example with recovery, and a script that knows nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from recovery.mindspore.control_plane import MODULE
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.startup import Job
from tests.mindspore.mindspore_cluster import JOB

pytestmark = pytest.mark.mindspore

PLAIN = Path(__file__).with_name("plain_loop.py")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as made:
        made.environment["FRAMEWORK"] = "mindspore"
        yield made


def test_the_example_with_a_worker_killed_on_the_way(job: Job) -> None:
    job.environment["STEP_MS"] = "40"
    script = job.start("msrun_single.sh")
    job.wait(lambda: job.saved(1), "checkpoint of rank 1")
    job.worker(1, "train_mindspore.py").kill()
    assert job.ends(script) == 0, job.output()
    job.weights()
    said = (job.place / "out.log").read_text(encoding="utf-8", errors="replace")
    assert "modules in" in said, "the template"
    assert "workers are spawned" not in said
    killed = json.loads((job.place / "msrun_log/incident-1.json").read_text())
    assert (killed["first"]["rank"], killed["followed"]) == (1, [])
    job.wait(lambda: not job.living(), "end of all")


def test_a_script_without_recovery_is_started_again_with_its_world(job: Job) -> None:
    shutil.copy(PLAIN, job.place)
    job.environment["SCRIPT"] = str(job.place / PLAIN.name)
    script = job.start("msrun_single.sh")

    def pids() -> list[int]:
        path = job.place / "steps_1"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[0]) for line in lines if int(line.split()[1]) >= 7]

    job.wait(pids, "step 7 of rank 1")
    os.kill(pids()[0], signal.SIGKILL)
    assert job.ends(script) == 0, job.output()
    steps = [line.split()[1:] for line in (job.place / "steps_1").read_text().splitlines()]
    assert [int(step) for step, restart in steps if restart == "1"] == list(range(6, 21))
    assert (job.place / "result").exists()
    job.wait(lambda: not job.living(), "end of all")


def test_mindspores_scheduler_stays_until_the_last_rank_has_left(tmp_path: Path) -> None:
    """A rank whose connection to it closes while MindSpore takes itself down ends with SIGSEGV, once in some hundred ends."""
    environment = {"MS_NODE_TIMEOUT": "60", "JOB_LEAVES_AFTER": "end_{rank}", "JOB_EPOCHS": "1"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        shutil.copy(JOB, tmp_path)
        cluster.start("--start_method=fork", script=JOB.name)
        cluster.wait_event(EventKind.JOB_FINISHED)
        (scheduler,) = [psutil.Process(pid) for pid in cluster.living() if MODULE in _command(pid)]
        rank_0 = scheduler.parent()
        assert rank_0 is not None
        (tmp_path / "end_0").touch()
        cluster.wait(lambda: not rank_0.is_running(), "end of rank 0")
        assert scheduler.is_running(), cluster.tails()
        assert scheduler.status() != psutil.STATUS_ZOMBIE, cluster.tails()
        (tmp_path / "end_1").touch()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert not scheduler.is_running()


def _command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []
