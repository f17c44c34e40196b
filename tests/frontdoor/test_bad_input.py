"""What a user can get wrong before training begins: one clear line, an exit code of its own, and nothing lost. Real processes."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from recovery.store.reader import read_scheduler
from tests.cluster import small_job
from tests.cluster.small_cluster import SmallCluster
from tests.warm import process

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
INHERITED = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("MS_", "JOB_", "COV_", "COVERAGE"))
}
SOUND: Mapping[str, str | None] = {
    "MS_ROLE": "MS_WORKER",
    "MS_NODE_ID": "worker_0",
    "MS_WORKER_NUM": "2",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
    "MS_ENABLE_RECOVERY": "1",
    "MS_RECOVERY_PATH": "recovery",
    "PYTHONPATH": str(ROOT),
}


def start(
    place: Path, changes: Mapping[str, str | None] | None = None, *, script: Path | None = None
) -> tuple[int, list[str]]:
    """Run one process to its end.

    Args:
        place: where it is started.
        changes: variables other than SOUND; None: unset.
        script: what is started; the training without a framework if None.

    Returns:
        Exit code and what it printed, by line.
    """
    environment = {**SOUND, **(changes or {})}
    done = process.run(
        [sys.executable, str(script or Path(small_job.__file__))],
        cwd=place,
        env={**INHERITED, **{name: value for name, value in environment.items() if value is not None}},
        timeout=300,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def refused(place: Path, exit_code: int, *words: str, changes: Mapping[str, str | None]) -> None:
    """Run one process that must end with this code and one last line that holds the words, without a traceback."""
    found, lines = start(place, changes)
    assert found == exit_code, lines
    assert not any("Traceback" in line for line in lines), lines
    assert [word for word in words if word not in lines[-1]] == [], lines[-1]
    assert len([line for line in lines if "event=exit" in line]) == 1, lines


# --- settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["MS_WORKER", "MS_SCHED"])
@pytest.mark.parametrize(
    ("name", "value", "exit_code", "code"),
    [
        pytest.param(
            *("MS_WORKER_NUM", None, 20, "SETTING_MISSING"),
            marks=pytest.mark.cold_start(reason="the first lines of a process that a person started"),
        ),
        ("MS_SCHED_HOST", "", 20, "SETTING_MISSING"),
        ("MS_RECOVERY_PATH", None, 20, "SETTING_MISSING"),
        ("MS_SCHED_PORT", "eighty", 21, "SETTING_TYPE"),
        ("MS_WORKER_NUM", "0", 22, "SETTING_RANGE"),
        ("MS_ENABLE_RECOVERY", "yes", 22, "SETTING_RANGE"),
        ("MS_RETRY_INTERVAL_UPPER", "30", 23, "SETTING_CONFLICT"),
    ],
)
def test_a_wrong_setting_ends_the_process_with_its_name_its_value_and_its_rule(
    tmp_path: Path, role: str, name: str, value: str | None, exit_code: int, code: str
) -> None:
    refused(tmp_path, exit_code, code, name, value or "must be", changes={"MS_ROLE": role, name: value})
    assert list(tmp_path.iterdir()) == []


def test_one_kept_checkpoint_is_too_few_when_recovery_is_on(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, workers=1, environment={"JOB_STEP_MS": "1"}) as cluster:
        script = tmp_path / "train.py"
        sound = script.read_text()
        script.write_text(sound.replace("keep_checkpoint_max=3", "keep_checkpoint_max=1"))
        cluster.start()

        assert cluster.wait_exit("worker_0") == 22
        last = cluster.log("worker_0").splitlines()[-1]
        assert "SETTING_RANGE: keep_checkpoint_max=1: must be at least 2 when recovery is on" in last

        script.write_text(sound)
        cluster.launch("worker_0")
        cluster.wait_end()
        cluster.check_result()


# --- the recovery path ---------------------------------------------------------------------------------------------------


def test_a_recovery_path_that_is_a_file_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "recovery").write_text("a report")
    refused(
        tmp_path,
        24,
        "RECOVERY_PATH",
        "is not a directory",
        changes={"MS_ROLE": "MS_SCHED", "MS_SCHED_PORT": "0"},
    )
    assert (tmp_path / "recovery").read_text() == "a report"


def test_a_recovery_path_where_nobody_can_write_is_named(tmp_path: Path) -> None:
    refused(
        tmp_path,
        24,
        "RECOVERY_PATH",
        "'/proc/recovery'",
        changes={
            "MS_ROLE": "MS_SCHED",
            "MS_SCHED_PORT": "0",
            "MS_RECOVERY_PATH": "/proc/recovery",
        },
    )


# --- what is stored ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a job that is done."""
    place = tmp_path_factory.mktemp("finished")
    with SmallCluster(place, workers=1, environment={"JOB_STEP_MS": "1"}) as cluster:
        cluster.start()
        cluster.wait_end()
    return place


@pytest.fixture
def stored(finished: Path, tmp_path: Path) -> Path:
    """The scheduler's store of that job, folded into one file; a copy, which a test may change."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "recovery" / "scheduler.db"


def _of_another_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE songs (title TEXT)")


def _of_a_newer_release(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999_later'")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "exit_code", "code"),
    [
        (_of_another_program, 31, "STORE_NOT_OURS"),
        (_of_a_newer_release, 33, "STORE_VERSION"),
        (_cut, 32, "STORE_CORRUPT"),
        (_emptied, 32, "STORE_CORRUPT"),
    ],
)
def test_a_store_that_is_not_right_is_named_and_left_as_it_is(
    stored: Path, damage: Callable[[Path], None], exit_code: int, code: str
) -> None:
    damage(stored)
    before = stored.read_bytes()
    refused(
        stored.parents[1],
        exit_code,
        code,
        str(stored),
        changes={
            "MS_ROLE": "MS_SCHED",
            "MS_WORKER_NUM": "1",
            "MS_SCHED_PORT": "0",
        },
    )
    assert stored.read_bytes() == before


def test_a_relative_recovery_path_is_found_again_from_the_same_directory_only(stored: Path) -> None:
    job = read_scheduler(stored.parent).job
    (stored.parents[1] / "elsewhere").mkdir()
    refused(
        stored.parents[1] / "elsewhere",
        62,
        "WAIT_TIMEOUT",
        "MS_TOPO_TIMEOUT",
        changes={
            "MS_ROLE": "MS_SCHED",
            "MS_WORKER_NUM": "1",
            "MS_SCHED_PORT": "0",
            "MS_TOPO_TIMEOUT": "1",
        },
    )
    assert read_scheduler(stored.parents[1] / "elsewhere" / "recovery").job != job
    assert read_scheduler(stored.parent).job == job


# --- the network ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_scheduler_with_the_address_of_another_machine_says_so(tmp_path: Path, host: str) -> None:
    refused(tmp_path, 51, "HOST_UNUSABLE", host, changes={"MS_ROLE": "MS_SCHED", "MS_SCHED_HOST": host})


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(tmp_path, 50, "PORT_IN_USE", port, changes={"MS_ROLE": "MS_SCHED", "MS_SCHED_PORT": port})


def test_a_worker_that_finds_no_scheduler_gives_up_in_time(tmp_path: Path) -> None:
    # A socket that is bound and does not listen: nothing answers there, and no other process takes the port.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = str(closed.getsockname()[1])
        refused(
            tmp_path,
            52,
            "SCHEDULER_UNREACHABLE",
            port,
            changes={"MS_SCHED_PORT": port, "MS_TOPO_TIMEOUT": "1"},
        )


def test_too_few_workers_end_the_wait_with_who_is_missing(tmp_path: Path) -> None:
    # Long enough for a worker to start and register on a busy machine: the scheduler waits from its own start on.
    with SmallCluster(tmp_path, workers=2, environment={"MS_TOPO_TIMEOUT": "8"}) as cluster:
        cluster.launch("worker_0")
        cluster.launch("sched")

        assert cluster.wait_exit("sched") == 62
        assert cluster.wait_exit("worker_0") == 62
        for name in ("sched", "worker_0"):
            assert "WAIT_TIMEOUT" in cluster.log(name)
            assert "1 of 2 workers" in cluster.log(name)
            assert "Traceback" not in cluster.log(name)
