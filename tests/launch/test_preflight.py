"""Mistakes that people make before a job: each is answered in one line with the next thing to type, and nothing is started for those that refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from recovery.cli import torchrun_line
from recovery.core.records import CheckpointState, JobState
from recovery.errors import RecoveryError
from recovery.launch import placement, preflight, script_imports
from recovery.launch.command import _this_host, launch
from recovery.launch.job_spec import JobSpec
from recovery.store.lock import OwnerLock
from recovery.store.paths import scheduler_path
from recovery.store.repository import SchedulerStore
from tests.launch.typed import job as job_of
from tests.store.any_records import checkpoint, job

JOB = "import recovery\n\n\ndef train(session): ...\n\n\nrecovery.run(train)()\n"
RECOVERING = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": "rec"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(JOB)
    return tmp_path


def lines(environment: dict[str, str], *words: str) -> list[str]:
    """What is said of a command, a refusal as the last line."""
    return looked_at(environment, job_of(list(words)))


def looked_at(environment: dict[str, str], spec: JobSpec) -> list[str]:
    reading = script_imports.parse_script(placement.program_of(spec, sys.executable)[1:], Path.cwd())
    program = placement.Script(supervised="recovery" not in reading.packages, world_of="")
    placed = placement.place(spec, _this_host(spec.master_addr), program)
    said: list[str] = []
    try:
        preflight.look(preflight.Looked(spec, environment, reading, placed, Path.cwd()), said.append)
    except RecoveryError as error:
        said.append(str(error))
    return said


def test_a_command_without_a_mistake_is_answered_with_nothing() -> None:
    assert lines(RECOVERING, "--worker_num=1", "train.py") == []
    assert lines({"MS_ENABLE_RECOVERY": "0"}, "--worker_num=1", "train.py") == [], (
        "asked for, so not forgotten"
    )


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (
            "trian.py",
            "SETTING_RANGE: task_script='trian.py': there is no such file here. Give the path of the script, perhaps train.py.",
        ),
        (
            "broken.py",
            (
                "SETTING_RANGE: task_script='{here}/broken.py': line 1 is no Python (expected ':'), so every worker would end at once. "
                "python -m py_compile {here}/broken.py shows the place."
            ),
        ),
    ],
)
def test_a_script_that_cannot_run_is_refused_before_anything_is_made(
    place: Path, typed: str, answer: str
) -> None:
    (place / "broken.py").write_text("def train(session)\n    pass\n")
    with pytest.raises(RecoveryError) as error:
        launch(job_of(["--log_dir=logs", "--worker_num=1", typed]), RECOVERING)
    assert str(error.value) == answer.format(here=place)
    assert not (place / "logs").exists()


def test_a_setting_that_no_process_would_take_is_refused_by_the_launcher() -> None:
    assert lines({"MS_ENABLE_RECOVERY": "yes"}, "--worker_num=1", "train.py") == [
        "SETTING_RANGE: MS_ENABLE_RECOVERY='yes': must be 1 (on) or 0 (off). Set it, for example MS_ENABLE_RECOVERY=1, or unset it to get 0."
    ]


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant() -> None:
    said = lines(
        {**RECOVERING, "MS_REJOIN_WINDWO": "3", "MS_DEV_OF_OTHERS": "1"}, "--worker_num=1", "train.py"
    )
    assert said == [
        "environment: MS_REJOIN_WINDWO is no setting, and has no effect. Perhaps it is MS_REJOIN_WINDOW; `recovery env` lists them all."
    ]
    misspelt, refused = lines(
        {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PTAH": "x"}, "--worker_num=1", "train.py"
    )
    assert "Perhaps it is MS_RECOVERY_PATH" in misspelt
    assert refused.startswith("SETTING_MISSING: MS_RECOVERY_PATH is not set")


def test_recovery_that_was_forgotten_is_said() -> None:
    assert lines({}, "--worker_num=1", "train.py") == [
        (
            "MS_ENABLE_RECOVERY: recovery is OFF: the first failure ends the job. "
            "MS_ENABLE_RECOVERY=1 MS_RECOVERY_PATH=DIR recovery msrun ... train.py turns it on."
        )
    ]


def test_a_script_that_imports_recovery_and_never_enters_training_is_told(place: Path) -> None:
    (place / "never.py").write_text("import recovery\nprint('done')\n")
    [said] = lines(RECOVERING, "--worker_num=1", "never.py")
    assert said.startswith(
        "task_script: never.py imports recovery and calls neither recovery.run nor recovery.init"
    )
    for enters in (
        "from recovery import run\n",
        "import recovery as r\nr.init()\n",
        "import train\nimport recovery\n",
    ):
        (place / "enters.py").write_text(enters)
        assert lines(RECOVERING, "--worker_num=1", "enters.py") == []


def test_workers_of_other_hosts_that_nobody_has_asked_for_are_said() -> None:
    assert lines(RECOVERING, "--nproc_per_node=2", "train.py") == [
        (
            "--nproc_per_node: 2 of --worker_num=8 workers (the default) start here, and the job waits for 6 more from other hosts, 600 s. "
            "Where this is the only host: recovery msrun --worker_num=2 ... train.py."
        )
    ]
    assert lines(RECOVERING, "--nproc_per_node=2", "--worker_num=8", "train.py") == []
    assert lines(RECOVERING, "--nproc_per_node=2", "--nnodes=4", "train.py") == []


def test_the_next_run_of_a_finished_job_is_said(place: Path) -> None:
    store = SchedulerStore.open(place / "rec")
    store.apply([msgspec.structs.replace(job(), worker_count=1, state=JobState.FINISHED)], wall_ms=1)
    store.close()
    assert lines(RECOVERING, "--worker_num=1", "train.py") == [
        (
            "MS_RECOVERY_PATH: the job of rec has finished (run 1), and this start begins run 2 of the same job. "
            "For another job give another directory, or type `recovery reset rec` first."
        )
    ]


def test_a_path_on_which_a_job_runs_is_refused_once_its_scheduler_has_had_time_to_end(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "rec").mkdir()
    running = OwnerLock(scheduler_path(place / "rec"))
    monkeypatch.setattr(preflight, "_ENDING_MS", 100)
    said, refused = lines(RECOVERING, "--worker_num=1", "train.py")
    assert said.startswith(
        "MS_RECOVERY_PATH: a job of rec runs on this host already. All workers of one host "
    )
    assert refused.startswith("STORE_LOCKED: ")
    assert f"is in use by pid {os.getpid()} on " in refused
    elsewhere = "--master_addr=192.0.2.7", "--worker_num=2", "--local_worker_num=1", "train.py"
    assert lines(RECOVERING, *elsewhere) == [], "this host has no scheduler to start"

    monkeypatch.setattr(preflight, "_ENDING_MS", 60_000)
    monkeypatch.setattr(preflight._nothing, "wait", lambda _s: running.release())
    assert lines(RECOVERING, "--worker_num=1", "train.py") == [], "its launcher was killed just now"


def test_another_number_of_workers_is_refused_by_the_flag_that_was_typed(place: Path) -> None:
    store = SchedulerStore.open(place / "rec")
    store.apply([msgspec.structs.replace(job(), worker_count=2)], wall_ms=1)
    store.close()
    [refused] = lines(RECOVERING, "--worker_num=4", "train.py")
    assert refused.startswith(
        "SETTING_RANGE: --worker_num=4: makes 4 workers in all, and the job of rec has 2: a job keeps their number. "
    )
    machine = torchrun_line.Machine(processors=8, devices=lambda _word: 0, free_port=29400)
    line = torchrun_line.read({"nproc_per_node": "4", "standalone": True}, ["train.py"], machine)
    [refused] = looked_at(RECOVERING, line.spec)
    assert refused.startswith(
        "SETTING_RANGE: --nproc-per-node=4: makes 4 workers in all, and the job of rec has 2"
    )
    assert lines(RECOVERING, "--worker_num=2", "train.py") == []


def test_the_path_of_a_finished_job_with_checkpoints_is_refused_until_somebody_says_what_is_meant(
    place: Path,
) -> None:
    store = SchedulerStore.open(place / "rec")
    done = msgspec.structs.replace(job(), worker_count=1, state=JobState.FINISHED)
    saved = [
        msgspec.structs.replace(checkpoint(step), run=done.run, state=state)
        for step, state in (
            (10, CheckpointState.COMMITTED),
            (20, CheckpointState.COMMITTED),
            (30, CheckpointState.INVALID),
        )
    ]
    store.apply([done, *saved], wall_ms=1)
    store.close()
    [refused] = lines(RECOVERING, "--worker_num=1", "train.py")
    assert refused == (
        "SETTING_RANGE: MS_RECOVERY_PATH='rec': its job has finished (run 1), its checkpoint of step 20 is there, and nothing says whether training is "
        "to go on there. --continue=True goes on from step 20, to a later end; --continue=False begins run 2 at step 0, and the script writes its "
        "files again. For another job give another directory, or type `recovery reset rec` first."
    )
    [said] = lines({**RECOVERING, "MS_CONTINUE": "1"}, "--worker_num=1", "train.py")
    assert said.startswith(
        "MS_RECOVERY_PATH: the job of rec has finished (run 1), and this start goes on with that run, from step 20"
    )
    [said] = lines({**RECOVERING, "MS_CONTINUE": "0"}, "--worker_num=1", "train.py")
    assert "this start begins run 2 of the same job" in said


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("msrun --nosuch=3 train.py", "No such option: --nosuch"),
        (
            "msrun --join",
            "Option '--join' requires an argument. Write --join=VALUE; of a switch, --join=True.",
        ),
        ("evnts", "No such command 'evnts'. Did you mean 'events'"),
    ],
)
def test_wrong_words_of_a_command_are_answered_in_one_line(typed: str, answer: str) -> None:
    command = [sys.executable, "-m", "recovery", *typed.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    [line] = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, line[: len(answer)]) == (2, answer)
    assert line.endswith("--help` lists what there is.")
