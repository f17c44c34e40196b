"""Every way to start a job that examples/startup_method shows, as a person starts it; all end with the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.store.reader import read_events
from tests.cluster.made_once import made_once
from tests.cluster.startup import AS_ROOT, Job
from tests.faults.hosts import Host, host
from tests.needs import needs_tool

__all__ = ["host"]

pytestmark = pytest.mark.cluster


@pytest.fixture
def mpirun() -> str:
    """Open MPI's program."""
    return needs_tool("mpirun", "openmpi-bin")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as made:
        yield made


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rec") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights after the plainest start."""

    def run(place: Path) -> None:
        made = Job(place)
        assert made.ends(made.start("dynamic_cluster.sh")) == 0, made.output()
        assert not made.living()

    return Job(made_once(tmp_path_factory, "plainest_start", run)).weights()


@pytest.mark.slow
def test_one_host_with_a_worker_killed_on_the_way(job: Job, undisturbed: str) -> None:
    script = job.start("msrun_single.sh")
    job.wait(lambda: job.saved(1), "checkpoint of rank 1")
    job.worker(1).kill()
    assert job.ends(script) == 0, job.output()
    assert job.weights() == undisturbed
    assert "start 2" in (job.place / "msrun_log/worker_1.log").read_text()
    assert not job.living()


@pytest.mark.slow
def test_two_hosts_with_a_script_on_each(job: Job, host: Host, undisturbed: str) -> None:
    first = job.start("msrun_1.sh", host.scheduler)
    second = job.start("msrun_2.sh", host.scheduler, prefix=host.prefix)
    assert job.ends(first) == job.ends(second) == 0, job.output()
    assert job.weights() == undisturbed
    assert (job.place / "msrun_log_2/worker_1.log").exists()
    assert not (job.place / "msrun_log_2/scheduler.log").exists()


def test_two_hosts_need_the_first_ones_address(job: Job) -> None:
    assert job.ends(job.start("msrun_2.sh")) == 2
    assert "usage: bash msrun_2.sh NODE_1_ADDRESS" in job.output()


@pytest.mark.usefixtures("mpirun")
@pytest.mark.parametrize("way", ["-n", "-H", "--hostfile"])
def test_mpirun_starts_everything(job: Job, undisturbed: str, way: str) -> None:
    (job.place / "hosts").write_text("localhost slots=2\n")
    words = {"-n": [], "-H": ["-H", "localhost:2"], "--hostfile": ["--hostfile", "hosts"]}[way]
    assert job.ends(job.start("mpirun.sh", *words)) == 0, job.output()
    assert job.weights() == undisturbed
    job.wait(lambda: not job.living(), "end of rank 0's scheduler")


@pytest.mark.usefixtures("mpirun")
def test_mpirun_on_two_hosts_finds_the_scheduler(job: Job, undisturbed: str, short_path: Path) -> None:
    # In place of ssh: the other hosts are this one, each with a directory of its own for Open MPI (with a short name: it
    # makes sockets there), without which its daemons crash now and then.
    agent = job.place / "agent.sh"
    agent.write_text(f'#!/bin/sh\nexport TMPDIR={short_path}/$1\nmkdir -p $TMPDIR\nshift\nexec sh -c "$*"\n')
    agent.chmod(0o755)
    job.environment["MPIRUN_ARGS"] = f"{AS_ROOT} --mca plm_rsh_agent {agent}"
    hosts = ("-H", "127.0.0.2:1,127.0.0.3:1")

    assert job.ends(job.start("mpirun.sh", *hosts)) != 0
    assert "mpirun -x MS_SCHED_HOST=ADDRESS" in job.output()
    job.environment["MS_SCHED_HOST"] = "127.0.0.1"
    assert job.ends(job.start("mpirun.sh", *hosts)) == 0, job.output()
    assert job.weights() == undisturbed


@pytest.mark.usefixtures("mpirun")
def test_mpirun_after_a_kill_goes_on_where_it_was(job: Job, undisturbed: str) -> None:
    script = job.start("mpirun.sh")
    job.wait(lambda: job.saved(0) and job.saved(1), "checkpoint of both ranks")
    job.worker(1).kill()
    assert job.ends(script) != 0, "mpirun ends the job"
    job.wait(lambda: not job.living(), "end of all")

    assert job.ends(job.start("mpirun.sh")) == 0, job.output()
    assert job.weights() == undisturbed
    assert "event=restored" in job.output()


@pytest.mark.usefixtures("mpirun")
def test_a_scheduler_that_a_person_started_serves_mpirun(job: Job, undisturbed: str) -> None:
    variables = {
        **job.environment,
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_ENABLE_RECOVERY": "1",
        "MS_RECOVERY_PATH": "recovery",
    }
    log = job.place / "person.log"
    with log.open("ab") as said:
        command = [sys.executable, "-m", "recovery", "scheduler"]
        scheduler = subprocess.Popen(command, cwd=job.place, env=variables, stderr=said)
    job.started.append(scheduler)
    job.wait(lambda: "event=listening" in log.read_text(), "scheduler")
    assert job.ends(job.start("mpirun.sh")) == 0, job.output()
    assert "scheduler_started_by_rank_0" not in job.output()
    assert scheduler.wait(120) == 0
    assert job.weights() == undisturbed


def table(path: Path, ranks: int) -> Path:
    """A rank table of one host."""
    devices = [
        {"device_id": str(rank), "device_ip": f"192.1.27.{rank}", "rank_id": str(rank)}
        for rank in range(ranks)
    ]
    server = {"server_id": "10.155.111.140", "device": devices, "host_nic_ip": "reserve"}
    content = {"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.slow
def test_a_rank_table_with_rank_0_killed_and_started_again(job: Job, undisturbed: str) -> None:
    job.environment["RANK_TABLE_FILE"] = str(table(job.place / "rank_table.json", 2))
    script = job.start("rank_table.sh", "rank_table.json")
    job.wait(lambda: job.saved(0), "checkpoint of rank 0")
    first = job.worker(0)
    command, environment = first.cmdline(), first.environ()
    os.kill(first.pid, signal.SIGKILL)
    with (job.place / "device/train0.log").open("ab") as log:
        again = subprocess.Popen(command, cwd=job.place, env=environment, stdout=log, stderr=log)
    job.started.append(again)

    assert job.ends(script) == 1, "it saw a failure"
    assert job.ends(again) == 0, job.output()
    assert job.weights() == undisturbed
    job.wait(lambda: not job.living(), "end of rank 0's scheduler")
    kinds = [stored.event.kind for stored in read_events(job.place / "recovery")]
    assert EventKind.SCHEDULER_RESTARTED in kinds
    assert EventKind.SCHEDULER_STOPPED not in kinds, (
        "it ended with a process that was killed: nobody has asked"
    )


def test_a_rank_table_of_another_size_is_refused(job: Job) -> None:
    assert job.ends(job.start("rank_table.sh", str(table(job.place / "t.json", 3)))) == 1
    assert "its ranks are [0, 1, 2], not 0 to 1" in job.output()
    assert "training failed" in job.output()
