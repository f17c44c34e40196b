"""Jobs on a real Slurm of this machine: `recovery slurm --submit`. Needs root, and what `make tools-of-clusters` installs."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.small_cluster import SCRIPT, PlacedCluster
from tests.cluster.test_drain import steps_lost
from tests.faults.slurm import PREEMPTION, Slurm, slurm

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HELD = {"JOB_HELD_STEP": "40"}
_CREDENTIALS_DIFFER_S = 2
"""Slurm counts them in whole seconds."""


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    """Three nodes."""
    with slurm(3) as made:
        yield made


class Job(PlacedCluster):
    """One job. What it prints is `launcher.log`, over all its starts."""

    def __init__(self, directory: Path, cluster: Slurm, **environment: str) -> None:
        super().__init__(directory, environment=environment or HELD)
        self._cluster, self.number = cluster, 0

    def submit(self, *options: str, run: tuple[str, ...] = ()) -> None:
        """As a user does, on a login node."""
        command = (sys.executable, "-m", "recovery", "slurm", "--submit", "--output=launcher.log", *options)
        self._submit(*command, "--", *run, SCRIPT)

    def sbatch(self, *options: str) -> None:
        """Submit `job.sh`."""
        self._submit("sbatch", "--output=launcher.log", "--open-mode=append", *options, "job.sh")

    def _submit(self, *command: str) -> None:
        said = self._cluster.ask(*command, cwd=self.directory, **self._environment)
        self.number = int(re.findall(r"Submitted batch job (\d+)", said)[0])

    def wait_done(self) -> None:
        """Wait until Slurm calls it completed, with the bits of an undisturbed training."""
        self.wait_ended("COMPLETED")
        self.check_result()

    def wait_ended(self, state: str) -> None:
        """Wait until it is over for Slurm, and in no other way than this one."""
        self.wait(
            lambda: self.state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), "end of the job"
        )
        assert self.state == state, f"{self._cluster.job(self.number)}\n{self.tails()}"

    def wait_requeued(self, restarts: int = 1) -> None:
        """Wait until it waits in the queue again, and let it begin soon: Slurm would take two minutes.

        A start within the second in which the one before was ended has a credential that its hosts call revoked, and the job is FAILED.
        """
        self.wait(lambda: self.restarts == restarts and self.state == "PENDING", "job in the queue again")
        ended_s = time.time()
        self.wait(
            lambda: time.time() >= ended_s + _CREDENTIALS_DIFFER_S, "second of its own for the next start"
        )
        self._cluster.ask("scontrol", "update", f"JobId={self.number}", "StartTime=now", "TimeLimit=60")

    @property
    def state(self) -> str:
        """By Slurm."""
        return self._cluster.job(self.number)["JobState"]

    @property
    def restarts(self) -> int:
        """By Slurm."""
        return int(self._cluster.job(self.number)["Restarts"])

    @property
    def exit_code(self) -> int:
        """By Slurm."""
        return int(self._cluster.job(self.number)["ExitCode"].partition(":")[0])

    def kill_worker(self, node_id: str) -> None:
        """SIGKILL."""
        # Another cluster of this machine has a job of the same number.
        of_job = {"SLURM_JOB_ID": str(self.number), "SLURM_CONF": self._cluster.environment["SLURM_CONF"]}
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except (psutil.Error, OSError):
                continue
            of_worker = node_id in (environment.get("MS_NODE_ID"), environment.get("SLURM_PROCID"))
            if of_job.items() <= environment.items() and of_worker and "scheduler" not in process.cmdline():
                os.kill(process.pid, signal.SIGKILL)
                return
        raise AssertionError(f"no process of {node_id}\n{self.tails()}")


def test_a_killed_worker(tmp_path: Path, cluster: Slurm) -> None:
    with Job(tmp_path, cluster) as job:
        job.submit("--nodes=2")
        job.wait_step(12)
        job.kill_worker("1")
        job.wait_step(20, generation=2)
        job.go_on()
        job.wait_done()

        # A chain of jobs for a training that is done: the rest has nothing to do.
        job.submit("--nodes=2", "--array=1", "--no-requeue")
        job.wait_done()
        assert "has finished: there is nothing to do" in job.log("launcher")


def test_workers_by_gpus(tmp_path: Path, cluster: Slurm) -> None:
    """As many as a host has GPUs of the job; each of its steps has all of them."""
    with Job(tmp_path, cluster) as job:
        job.submit("--nodes=1", "--spares=1", "--gpus-per-node=2")
        job.wait_step(12)
        job.wait(lambda: "watch-1" in cluster.ask("squeue", "--steps", "-h", "-o", "%j"), "third step")
        job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
        job.go_on()
        job.wait_done()


def test_a_killed_node_with_a_spare(tmp_path: Path, cluster: Slurm) -> None:
    with Job(tmp_path, cluster) as job:
        job.submit("--nodes=2", "--spares=1")
        job.wait_step(12)
        job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
        cluster.kill_node(1)
        job.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        job.wait_step(20, generation=2)
        job.go_on()
        job.wait_done()
        assert len(job.events(EventKind.PLAN_MADE)) == 2, "a lost node costs one generation"
        assert job.restarts == 0


@pytest.mark.parametrize("node", [0, 1], ids=["of the scheduler", "of workers"])
def test_a_killed_node_without_a_spare(tmp_path: Path, cluster: Slurm, node: int) -> None:
    """Slurm puts the job back into the queue, and it goes on there on the node that is left over."""
    with Job(tmp_path, cluster) as job:
        job.submit("--nodes=2")
        job.wait_step(12)
        job.wait_commit(10)
        cluster.kill_node(node)
        job.wait_requeued()
        job.go_on()
        job.wait_done()
        assert "started 1 times before" in job.log("launcher")


@pytest.mark.parametrize("is_put_back", [True, False], ids=["requeue", "no requeue"])
def test_a_killed_node_of_the_scheduler_with_a_spare(
    tmp_path: Path, cluster: Slurm, is_put_back: bool
) -> None:
    """Slurm itself would let the job run without its batch script, and without a scheduler, to its time limit."""
    with Job(tmp_path, cluster) as job:
        line = ("--nodes=1", "--spares=1", "--time=60")
        job.submit(*line, *(() if is_put_back else ("--no-requeue",)), run=("--nproc-per-node=2",))
        job.wait_step(12)
        job.wait_commit(10)
        cluster.kill_node(0)
        if is_put_back:
            job.wait_requeued()
        else:
            job.wait_ended("CANCELLED")
            job.submit(*line, run=("--nproc-per-node=2",))
        job.go_on()
        job.wait_done()
        outcome = "goes back into the queue" if is_put_back else "is ended; submit it again"
        said = f"n0 was lost, the host of the batch script and of the scheduler: the job {outcome}"
        assert job.log("launcher").count(said) == 1


@pytest.mark.parametrize("is_put_back", [True, False], ids=["requeue", "no requeue"])
def test_more_killed_nodes_than_spares(tmp_path: Path, is_put_back: bool) -> None:
    """The ranks of the second one are waited for as long as is set; then the job goes back into the queue, or ends where it may not."""
    with slurm(5) as cluster, Job(tmp_path, cluster) as job:
        line, limit = ("--nodes=2", "--spares=1", "--time=60"), ("--rdzv-conf=timeout=45",)
        job.submit(*line, *(() if is_put_back else ("--no-requeue",)), run=limit)
        job.wait_step(12)
        job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
        cluster.kill_node(1)
        job.wait_step(20, generation=2)
        cluster.kill_node(2)
        if is_put_back:
            job.wait_requeued()
        else:
            job.wait_ended("FAILED")
            assert job.exit_code == ROWS["WAIT_TIMEOUT"].exit_code
            job.submit(*line)
        job.go_on()
        job.wait_done()
        outcome = "the job goes back" if is_put_back else "this job may not go back"
        said = f"of the hosts that were lost (n1, n2) ranks are missing: {outcome} into the queue"
        assert job.log("launcher").count(said) == 1


def test_the_time_limit(tmp_path: Path, cluster: Slurm) -> None:
    """The job saves a step before it, goes back into the queue, and loses none."""
    with Job(tmp_path, cluster, **HELD, JOB_STEP_MS="100") as job:
        # It waits in a step for the notice, so that there is something to save however long the start takes.
        job.submit("--nodes=2", "--time=2", "--notice=45")
        job.wait_event(EventKind.DRAIN_BEGUN)
        job.go_on()
        job.wait_requeued()
        job.wait_done()
        assert "saved at step" in job.log("launcher")
        assert steps_lost(job) == 0


def test_preemption(tmp_path: Path) -> None:
    """In the grace that Slurm leaves it the job saves a step and goes back into the queue; it loses none. `scancel` is its end."""
    with slurm(2, PREEMPTION) as cluster, Job(tmp_path, cluster, JOB_STEP_MS="500") as job:
        job.submit("--nodes=2", "--time=60")
        job.wait_step(8)
        (tmp_path / "other.sh").write_text("#!/bin/bash\nsleep 5\n")
        cluster.ask("sbatch", "--partition=high", "--nodes=2", "--exclusive", "other.sh", cwd=tmp_path)
        job.wait_requeued()
        assert "Slurm takes its hosts for another job since 2" in job.log("launcher")
        job.wait_step(job.step() + 4)

        cluster.ask("scancel", str(job.number))
        job.wait_ended("CANCELLED")
        assert job.restarts == 1

        job.submit("--nodes=2", "--time=60")
        job.wait_done()
        assert steps_lost(job) == 0


def test_tasks_without_a_launcher(tmp_path: Path, cluster: Slurm) -> None:
    """`srun python train.py`: nobody starts a task again, and the same line goes on."""
    with Job(tmp_path, cluster, **HELD, MS_TOPO_TIMEOUT="60") as job:
        (tmp_path / "job.sh").write_text(
            f"#!/bin/bash\nsrun --kill-on-bad-exit=0 {sys.executable} {SCRIPT}\n"
        )
        job.sbatch("--nodes=1", "--ntasks=2")
        job.wait_step(12)
        job.wait_commit(10)
        job.kill_worker("1")
        job.wait(lambda: job.state == "FAILED", "end of a job whose rank is missing")
        assert "event=not_started_again" in job.log("launcher")

        job.go_on()
        job.sbatch("--nodes=1", "--ntasks=2")
        job.wait_done()
