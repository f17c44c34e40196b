"""`srun recovery run train.py`: what the step says is taken where nothing else is typed; and `recovery slurm` before it is submitted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import torchrun_line
from recovery.cli.torchrun_line import Line, Machine
from recovery.errors import SettingError

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[0-2]",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[0-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NODEID": "2",
}
PORT = 12_000 + 2 * 4711


def read(environment: dict[str, str], **given: Any) -> Line:
    machine = Machine(
        processors=6,
        devices=lambda _word: 0,
        free_port=23456,
        environment=environment,
        address_of=lambda host: f"{host}.cluster",
    )
    return torchrun_line.read(given, ("train.py",), machine)


def test_hosts_and_their_meeting_place_are_those_of_the_step() -> None:
    line = read({**STEP, "SLURM_GPUS_ON_NODE": "4"})
    spec = line.spec
    assert (spec.worker_num, spec.local_worker_num, spec.node_rank) == (12, 4, 2)
    assert (spec.master_addr, spec.master_port) == ("n0.cluster", PORT)
    assert line.notes == (
        f"taken from Slurm: --nnodes=3, --node_rank=2, --rdzv_endpoint=n0.cluster:{PORT}, --nproc_per_node=4",
    )


def test_spare_hosts_are_of_the_step_too() -> None:
    spec = read(STEP, spares="1", nproc_per_node="2").spec
    assert (spec.worker_num, spec.spare_hosts, spec.is_spare) == (4, 1, True)


def test_a_step_of_one_host_meets_at_its_loopback_address() -> None:
    one = {**STEP, "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}
    spec = read(one, nproc_per_node="2").spec
    assert (spec.worker_num, spec.master_addr, spec.master_port) == (2, "127.0.0.1", PORT)
    assert spec.is_on_one_host


@pytest.mark.parametrize(
    "typed", [{"standalone": True}, {"nnodes": "1"}, {"rdzv_endpoint": "host:29500"}, {"master_addr": "host"}]
)
def test_a_line_that_says_where_hosts_meet_takes_nothing_from_slurm(typed: dict[str, Any]) -> None:
    line = read(STEP, **typed)
    assert line.notes == ()
    assert line.spec.node_rank == -1


def test_a_batch_script_that_leaves_hosts_idle_is_told_so() -> None:
    script = {name: value for name, value in STEP.items() if "STEP" not in name}
    [note] = read(script).notes
    assert note.startswith("job 4711 of Slurm has 3 hosts, and this command uses one of them")
    assert read({**script, "SLURM_JOB_NODELIST": "n1"}).notes == ()


@pytest.mark.parametrize(
    ("environment", "given", "said"),
    [
        (
            {"SLURM_STEP_TASKS_PER_NODE": "4(x3)"},
            {},
            "srun --ntasks-per-node=1 recovery run --nproc-per-node=4",
        ),
        ({}, {"spares": "3"}, "--spares='3': leaves none of the 3 hosts of this step"),
        ({}, {"spares": "x"}, "--spares='x'"),
    ],
)
def test_a_step_that_cannot_be_a_job_is_refused(
    environment: dict[str, str], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError) as refused:
        read({**STEP, **environment}, **given)
    assert said in str(refused.value)


# --- recovery slurm -----------------------------------------------------------------------------------------------------


def slurm(*words: str, directory: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "recovery", "slurm", *words)
    environment = {"PATH": path}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_script_is_printed(tmp_path: Path) -> None:
    done = slurm("-N2", "--", "train.py", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "#!/bin/bash\n# Made by: recovery slurm -N2 -- train.py\n#SBATCH --nodes=2\n"
    )


@pytest.mark.parametrize(
    ("words", "run", "note"),
    [
        (
            ("--gres=gpu:a100:4", "--"),
            "--nproc-per-node=4 train.py",
            "each host has --nproc-per-node=4 workers, by --gres=gpu:a100:4\n",
        ),
        (("--gpus=8", "--", "--nproc_per_node=2"), "--nproc_per_node=2 train.py", ""),
        (("--",), "train.py", "each host has one worker: give --nproc-per-node=N behind -- for more\n"),
    ],
)
def test_the_script_says_how_many_workers_a_host_has(
    tmp_path: Path, words: tuple[str, ...], run: str, note: str
) -> None:
    done = slurm(*words, "train.py", directory=tmp_path)
    assert done.stdout.endswith(f" -- {run}\n")
    assert done.stderr == note


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus=8", "--", "train.py"), "--gpus='8': leaves open how many workers a host has"),
        (("--", "--nproc_per_node=x", "train.py"), "--nproc_per_node='x': must be a number"),
        (("--", "--nosuch=1", "train.py"), "No such option: --nosuch"),
        (
            ("--nodes=2", "train.py"),
            "must stand between the options of sbatch and what `recovery run` is given",
        ),
        (("--submit", "--", "train.py"), "--submit='sbatch': is not found on this host"),
    ],
)
def test_a_mistake_is_said_before_the_job_waits_for_its_turn(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = slurm(*words, directory=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
    assert not done.stdout
