"""The steps of a job's hosts, without Slurm: `srun` and `sinfo` are scripts that start the command here, and say which host answers.

What Slurm itself does is tried in tests/cluster/test_slurm.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from recovery.launch.slurm import host_steps
from recovery.launch.slurm.host_steps import HostSteps

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >>"$WRITTEN/options"; shift; done
exec "$@"
"""
SINFO = """#!/bin/bash
[[ $* == *--nodes=gone* ]] && echo 'allocated*' || echo allocated
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(host_steps, "_PAUSES_S", (0.3, 0.1))
    monkeypatch.setattr(host_steps, "_LOOK_S", 0.2)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("sinfo", SINFO)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return {"PATH": os.environ["PATH"], "WRITTEN": str(tmp_path)}


def ended(steps: HostSteps, environment: dict[str, str]) -> int:
    return asyncio.run(asyncio.wait_for(steps.run(environment), 120))


def steps_of(*lines: str, hosts: tuple[str, ...] = ("n0", "n1", "n2")) -> HostSteps:
    return HostSteps(hosts[: len(lines)], [("bash", "-c", line) for line in lines])


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("exit 0", "exit 0"), 0),
        (("exit 62", "exit 0"), 62),
        # An upload of another host that fails behind training.
        (("exit 0", "sleep 0.5; exit 48", "exit 0"), 48),
        (("exit 3", "exit 4"), 3),
        (("kill -9 $$", "exit 0"), 128 + signal.SIGKILL),
    ],
)
def test_the_job_ends_as_the_schedulers_host_or_as_what_fails_behind_it(
    environment: dict[str, str], lines: tuple[str, ...], code: int
) -> None:
    assert ended(steps_of(*lines), environment) == code


def test_the_step_of_another_host_is_begun_again_while_the_job_goes_on(
    environment: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its host may be back, and its end says nothing of the job's."""
    again = "echo begun >>$WRITTEN/begun; [ $(wc -l <$WRITTEN/begun) -ge 3 ] && exec sleep 0.1 || exit 7"
    first = "until [ -e $WRITTEN/begun ] && [ $(wc -l <$WRITTEN/begun) -ge 3 ]; do sleep 0.05; done"
    steps = steps_of(first, again)
    assert ended(steps, environment) == 0
    assert steps.lost == {"n1"}
    assert "n1: its step ended with 7 while the job goes on; it is begun again" in capfd.readouterr().out


def test_a_job_that_was_asked_to_end_begins_no_step_again(
    environment: dict[str, str], tmp_path: Path
) -> None:
    steps = steps_of("sleep 0.5; exit 143", "echo begun >>$WRITTEN/begun; exit 143")
    assert steps.note_asked(signal.SIGUSR1)
    assert not steps.note_asked(signal.SIGTERM)
    assert ended(steps, environment) == 143
    assert (tmp_path / "begun").read_text() == "begun\n"


def test_a_host_that_does_not_answer_is_not_waited_for_behind_the_end(
    environment: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    steps = steps_of("exit 0", "exec sleep 300", hosts=("n0", "gone"))
    assert ended(steps, environment) == 0
    assert steps.lost == {"gone"}
    assert "gone does not answer Slurm: its step is not waited for" in capfd.readouterr().out


def test_two_other_hosts_look_for_the_one_of_the_script_where_the_job_may_outlive_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    steps = steps_of(
        "until [ $(grep -c =watch- $WRITTEN/options) -ge 2 ]; do sleep 0.05; done",
        *["exit 0"] * 3,
        hosts=("n0", "n1", "n2", "n3"),
    )
    running = steps.run({**environment, "SLURM_JOB_ID": "5"}, outlive_script=True)
    assert asyncio.run(asyncio.wait_for(running, 120)) == 0
    options = (tmp_path / "options").read_text().split()
    watching = sorted(one for one in options if "=watch-" in one)
    assert watching == ["--job-name=watch-1", "--job-name=watch-2"]


def test_a_step_has_the_processors_of_its_script(environment: dict[str, str], tmp_path: Path) -> None:
    assert ended(steps_of("exit 0"), {**environment, "SLURM_CPUS_PER_TASK": "6"}) == 0
    options = (tmp_path / "options").read_text().split()
    assert {"--cpus-per-task=6", "--nodelist=n0", "--overlap", "--kill-on-bad-exit=0"} <= set(options)
