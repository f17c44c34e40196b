"""A host is to be taken away, as a file or a cloud's metadata says: no step is lost. Real launchers, on one host and on two."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from recovery.core.policy.next_plan import SAME_ENDS_MAX
from recovery.core.records import EventKind, JobState
from recovery.errors import ROWS
from recovery.report.status import status
from recovery.report.stored import read_stored
from recovery.store.reader import read_job
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT
from tests.cluster.test_drain import outcomes, steps_lost
from tests.cluster.test_launcher import assert_nothing_left
from tests.cluster.test_launcher_hosts import SECOND, start_first
from tests.faults.hosts import Host, host
from tests.launch.clouds import AWS, Cloud, cloud

__all__ = ["cloud", "host"]

pytestmark = pytest.mark.cluster

LEFT = 143
RARELY = {
    "JOB_SAVE_STEPS": "1000",
    "JOB_HELD_STEP": "40",
    "MS_DRAIN_TIMEOUT": "120",
    "JOB_ANSWER_MS": "60000",
}
"""No save but the one that is asked for, and no end before the test has acted."""


def start_second(cluster: LaunchedCluster, host: Host, **environment: str) -> None:
    """It alone hears of its notice."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    cluster.start(
        "--local_worker_num=1",
        f"--master_addr={host.scheduler}",
        "--node_rank=1",
        "--log_dir=logs_of_second",
        name=SECOND,
        prefix=(*host.prefix, "env", *variables),
    )


def second_leaves(cluster: LaunchedCluster, host: Host) -> None:
    """Its launcher starts, gets a notice amid training, and ends as one that was asked to."""
    notice = cluster.directory / "notice"
    start_second(cluster, host, MS_NOTICE_FILE=str(notice))
    cluster.wait_step(12)
    notice.touch()
    cluster.wait_event(EventKind.DRAIN_BEGUN)
    cluster.go_on()
    assert cluster.wait_exit(SECOND) == LEFT, cluster.tails()


def test_a_job_of_one_host_saves_a_step_and_the_next_start_goes_on_there(tmp_path: Path) -> None:
    with LaunchedCluster(
        tmp_path, environment={**RARELY, "MS_NOTICE_FILE": str(tmp_path / "notice")}
    ) as cluster:
        script = tmp_path / SCRIPT
        source = script.read_text()
        held = "                session.check()\n"
        assert held in source
        told = f"{held}                print('deadline', session.deadline, flush=True)\n"
        script.write_text(source.replace(held, told))
        cluster.start()
        cluster.wait_step(39)
        (tmp_path / "notice").write_text("120\n")
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == LEFT, cluster.tails()
        assert_nothing_left(cluster)
        said = cluster.log(LAUNCHER)
        assert "this host is to be taken away within 1" in said
        assert "the same command goes on there" in said
        told_of = cluster.log_of("worker_0")
        assert "deadline None\n" in told_of
        # What is left of the 120 s, less the 5 s in which processes end.
        assert re.search(r"deadline (1[01])?[0-9]?[0-9]\.", told_of), told_of

        cluster.start()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "is there from before this start" in cluster.log(LAUNCHER)
        assert steps_lost(cluster) == 0
        cluster.check_result()


def test_a_standby_of_another_host_takes_the_rank(tmp_path: Path, host: Host) -> None:
    with LaunchedCluster(tmp_path, environment=RARELY) as cluster:
        start_first(cluster, host, "--local_worker_num=1", "--standby_num=1")
        second_leaves(cluster, host)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert ["no step is lost" in outcome for outcome in outcomes(cluster)] == [True], outcomes(cluster)
        assert steps_lost(cluster) == 0
        assert status(read_stored(tmp_path / "recovery"))["notices"] == 1
        assert "no step is lost" in cluster.log(SECOND)
        cluster.check_result()


def test_without_a_standby_all_save_a_step_and_the_same_command_brings_the_rank_back(
    tmp_path: Path, host: Host
) -> None:
    with LaunchedCluster(tmp_path, environment=RARELY) as cluster:
        start_first(cluster, host, "--local_worker_num=1")
        second_leaves(cluster, host)
        start_second(cluster, host)
        assert cluster.wait_exit(SECOND) == 0, cluster.tails()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert steps_lost(cluster) == 0
        cluster.check_result()


def test_the_metadata_of_a_cloud_is_a_notice(tmp_path: Path, cloud: Cloud) -> None:
    with LaunchedCluster(tmp_path, environment={**RARELY, "MS_NOTICE_URL": cloud.address + AWS}) as cluster:
        cluster.start()
        cluster.wait_step(6)
        time = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=120)
        said = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ")}
        cloud.answers[AWS] = (200, json.dumps(said))
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == LEFT, cluster.tails()
        assert "the same command goes on there" in cluster.log(LAUNCHER)


@pytest.mark.parametrize("step", [0, 6])
def test_a_worker_that_is_asked_to_end_without_a_standby_uses_up_no_restart(
    tmp_path: Path, step: int
) -> None:
    """Before the first step it was taken for a script that ends by itself, and the job failed."""
    with LaunchedCluster(tmp_path, environment={**RARELY, "JOB_HELD_STEP": str(step + 1)}) as cluster:
        cluster.start("--max_restarts=0")
        cluster.wait(lambda: cluster.step_of_all() >= step, f"step {step} of both")
        cluster.wait_event(EventKind.STATE_LOADED, count=2)
        os.kill(cluster.pid_of("1"), signal.SIGTERM)
        cluster.wait(lambda: "worker_1 start 1: " in cluster.log(LAUNCHER) or step, "end of worker_1")
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "asked to end by SIGTERM; it is started again" in cluster.log(LAUNCHER)
        assert not list(cluster.logs.glob("incident-*")), "nothing has failed"
        assert steps_lost(cluster) == 0
        cluster.check_result()


def pid_of_start(cluster: LaunchedCluster, start: int) -> int:
    """Of worker_1."""
    line = rf"started worker_1 \(pid ([0-9]+), start {start}\b"
    cluster.wait(lambda: re.search(line, cluster.log(LAUNCHER)), f"start {start} of worker_1")
    [pid] = re.findall(line, cluster.log(LAUNCHER))
    return int(pid)


def test_what_sends_sigterm_at_every_start_is_not_followed_for_ever(tmp_path: Path) -> None:
    """A daemon that watches memory ends each process before its first step: each start used up no restart, and there was always one more."""
    with LaunchedCluster(tmp_path, environment={**RARELY, "JOB_HELD_STEP": "1"}) as cluster:
        cluster.start("--max_restarts=0")
        for start in range(1, SAME_ENDS_MAX + 1):
            os.kill(pid_of_start(cluster, start), signal.SIGTERM)
        assert cluster.wait_exit(LAUNCHER) == ROWS["JOB_FAILED"].exit_code, cluster.tails()
        assert f"SIGTERM has ended it {SAME_ENDS_MAX} times in a row" in cluster.log(LAUNCHER)
        job = read_job(tmp_path / "recovery")
        assert job is not None
        assert (job.state, "SIGTERM" in job.reason) == (JobState.FAILED, True), job.reason
        assert_nothing_left(cluster)


def start_both(cluster: LaunchedCluster, host: Host, environment: Mapping[str, str]) -> None:
    """As `srun` starts both: all that they hear is in their environment."""
    variables = ("env", *(f"{name}={value}" for name, value in environment.items()))
    flags = ("--local_worker_num=1", f"--master_addr={host.scheduler}")
    cluster.start(*flags, "--node_rank=0", prefix=variables)
    there = (*host.prefix, *variables)
    cluster.start(*flags, "--node_rank=1", "--log_dir=logs_of_second", name=SECOND, prefix=there)


@pytest.mark.slow
def test_the_end_of_slurms_time_takes_all_hosts_away_at_once_and_no_step_is_lost(
    tmp_path: Path, host: Host
) -> None:
    """Both launchers read the same time, and hear of it within a second: whoever is first, all save one step, and both end."""
    grace_s, trains_s = 600, 60
    ends = str(round(time.time()) + grace_s + trains_s)
    limited = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": ends, "MS_STOP_GRACE": str(grace_s)}
    with LaunchedCluster(tmp_path, environment=RARELY) as cluster:
        start_both(cluster, host, limited)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        assert [cluster.wait_exit(name) for name in (LAUNCHER, SECOND)] == [LEFT, LEFT], cluster.tails()
        assert_nothing_left(cluster)
        for name in (LAUNCHER, SECOND):
            assert re.search(r"to be taken away within 5[0-9.]+ s \(SLURM_JOB_END_TIME=", cluster.log(name))
        assert any("saved at step" in outcome for outcome in outcomes(cluster)), outcomes(cluster)

        start_both(cluster, host, {})
        assert [cluster.wait_exit(name) for name in (LAUNCHER, SECOND)] == [0, 0], cluster.tails()
        assert steps_lost(cluster) == 0
        cluster.check_result()
