"""The program of a batch script, without Slurm: what it starts where, and when it puts the job back. With Slurm: tests/cluster/test_slurm.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ALLOCATION = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[0-2]", "SLURMD_NODENAME": "n1"}
ENDS = """#!/bin/bash
typed="$*"; host=${typed#*--nodelist=}; host=${host%% *}
env | grep -E '^MS_(JOB_TOKEN|RECOVERY_PATH|ENABLE_RECOVERY|STOP_GRACE)=' | sort >"$PWD/environment_of_$host"
echo "$*" >"$PWD/step_of_$host"
[ "$host" = n1 ] && exit ${CODE:-0}
exit 0
"""
SAYS = """#!/bin/bash
[ "${0##*/} $1" = "scontrol requeue" ] && { echo "$*" >"$PWD/requeued"; echo refused >&2; exit 1; }
[ "${0##*/} $*" = "scontrol --oneliner show job 4711" ] && { echo "JobId=4711 JobState=RUNNING Requeue=${REQUEUE:-1} PreemptTime=$PREEMPTED"; exit 0; }
[ "${0##*/}" = scontrol ] && echo "NodeName=$3 Arch=x86_64 NodeAddr=10.1.2.3 NodeHostName=$3"
exit 0
"""


def batch(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tools = directory / "bin"
    tools.mkdir(exist_ok=True)
    for name, text in (("srun", ENDS), ("scontrol", SAYS), ("sinfo", SAYS), ("scancel", SAYS)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "SLURM"))}
    return subprocess.run(
        (sys.executable, "-m", "recovery.launch.slurm.batch_step", *words),
        cwd=directory,
        env={**ours, "PATH": f"{tools}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_each_host_has_a_launcher_and_the_batch_scripts_host_the_scheduler(tmp_path: Path) -> None:
    done = batch(tmp_path, "--nodes=2", "--", "--nproc-per-node=4", "train.py", **ALLOCATION)
    assert done.returncode == 0, done.stderr
    steps = [(tmp_path / f"step_of_{host}").read_text().rstrip() for host in ("n1", "n0", "n2")]
    line = "-m recovery run --nnodes=2 --spares=1 --node_rank={} --rdzv_endpoint=10.1.2.3:21422 --nproc-per-node=4 train.py"
    for at, step in enumerate(steps):
        assert step.endswith(line.format(at)), step
    token = (tmp_path / "recovery" / "job_token").read_text().strip()
    for host in ("n0", "n1", "n2"):
        assert (tmp_path / f"environment_of_{host}").read_text().splitlines() == [
            "MS_ENABLE_RECOVERY=1",
            f"MS_JOB_TOKEN={token}",
            f"MS_RECOVERY_PATH={tmp_path}/recovery",
            "MS_STOP_GRACE=110",
        ]
    assert "job 4711 of Slurm: 2 hosts and 1 spare: n1, n0, n2" in done.stdout
    assert token not in done.stdout + done.stderr


def test_a_script_that_fails_is_not_put_back_into_the_queue(tmp_path: Path) -> None:
    done = batch(tmp_path, "--nodes=3", "--", "train.py", CODE="62", **ALLOCATION)
    assert done.returncode == 62
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(
    ("code", "preempted", "why"),
    [
        ("143", "2026-11-30T18:05:35", "Slurm takes its hosts for another job since 2026-11-30T18:05:35"),
        # A person has told the steps.
        ("143", "None", ""),
        # Its end has another cause, which another start meets again.
        ("62", "2026-11-30T18:05:35", ""),
    ],
)
def test_a_job_that_is_preempted_goes_back_into_the_queue(
    tmp_path: Path, code: str, preempted: str, why: str
) -> None:
    done = batch(tmp_path, "--nodes=3", "--", "train.py", CODE=code, PREEMPTED=preempted, **ALLOCATION)
    assert done.returncode == int(code), "it is refused here"
    assert (tmp_path / "requeued").exists() is bool(why)
    if why:
        assert f"{why}: the job goes back into the queue (scontrol requeue)" in done.stdout
        assert "not put back into the queue: refused; submit it again" in done.stdout


def test_a_job_that_may_not_go_back_into_the_queue_says_what_to_do(tmp_path: Path) -> None:
    preempted = {"CODE": "143", "PREEMPTED": "2026-11-30T18:05:35", "REQUEUE": "0"}
    done = batch(tmp_path, "--nodes=3", "--", "train.py", **preempted, **ALLOCATION)
    assert done.returncode == 143
    assert not (tmp_path / "requeued").exists()
    assert "this job may not go back into the queue (--no-requeue, or" in done.stdout
    assert "goes back into the queue" not in done.stdout


@pytest.mark.parametrize(("given", "taken"), [("60", "60"), ("600", "110"), ("soon", "soon")])
def test_no_host_leaves_by_the_end_of_slurms_time_before_the_notice(
    tmp_path: Path, given: str, taken: str
) -> None:
    """By SLURM_JOB_END_TIME, MS_STOP_GRACE ahead: nobody would put the job back into the queue."""
    done = batch(tmp_path, "--nodes=3", "--", "train.py", MS_STOP_GRACE=given, **ALLOCATION)
    assert f"MS_STOP_GRACE={taken}" in (tmp_path / "environment_of_n0").read_text().splitlines()
    assert ("--notice=120 leaves 110 s" in done.stdout) is (given != taken)


@pytest.mark.parametrize(
    ("environment", "words", "said"),
    [
        ({}, "--nodes=1 -- t.py", "SLURM_JOB_ID is missing"),
        (
            {**ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n0"},
            "-- t.py",
            "SLURM_JOB_ID is of a step",
        ),
        (
            ALLOCATION,
            "--nodes=4 -- t.py",
            "--nodes=4: is more than the 3 hosts of this allocation (n1, n0, n2)",
        ),
    ],
)
def test_what_is_no_allocation_for_the_job_is_refused(
    tmp_path: Path, environment: dict[str, str], words: str, said: str
) -> None:
    done = batch(tmp_path, *words.split(), **environment)
    assert done.returncode not in (0, 1)
    assert said in done.stdout + done.stderr
    assert not list(tmp_path.glob("step_of_*"))
