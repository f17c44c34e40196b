"""Every command says of a path whose scheduler's store is lost that it is, and what to do, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.ids import RunId
from recovery.core.policy.rebuild import UNSURE
from recovery.core.records import DirectoryRecord, EventKind, EventRecord
from recovery.errors import StoreLostError
from recovery.report import stored
from recovery.report.doctor import examine
from recovery.report.plan import plan
from recovery.store.repository import SchedulerStore
from tests.scheduler.test_rebuild import generation, job, node, save, worker_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two workers' stores, and no scheduler's."""
    path = tmp_path / "recovery"
    for rank in range(2):
        directory = tmp_path / "ckpt" / str(rank)
        save(directory, rank, 10)
        where = DirectoryRecord(path=str(directory), prefix="small", run=RunId(1))
        worker_store(path, rank, job(), node(rank), generation(2, 0), where)
    return path


def _environment(path: Path) -> dict[str, str]:
    return {
        "MS_ROLE": "MS_SCHED",
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "18118",
        "MS_ENABLE_RECOVERY": "1",
        "MS_RECOVERY_PATH": str(path),
    }


def test_status_and_plan_say_that_the_store_is_lost_and_what_to_do(path: Path) -> None:
    with pytest.raises(StoreLostError, match=f"recovery rebuild {path}"):
        stored.read_stored(path)


def test_doctor_says_so_before_the_job_is_started(path: Path) -> None:
    [check] = [check for check in examine(_environment(path)) if check.name == "store"]
    assert not check.ok
    assert "worker_0 (rank 0, run 1, generation 2" in check.found
    assert "MS_REBUILD_STORE=1" in check.next_step


def test_doctor_names_a_store_that_cannot_be_read(path: Path) -> None:
    (path / "scheduler.db").write_bytes(b"")
    [check] = [check for check in examine(_environment(path)) if check.name == "store"]
    assert "STORE_CORRUPT" in check.found


def rebuilt(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recovery", "rebuild", str(path), "--yes", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_person_has_the_next_scheduler_ask_the_workers(path: Path) -> None:
    done = rebuilt(path)

    assert done.returncode == 0, done.stderr
    assert "the next scheduler asks the workers; the stores of its workers know it: worker_0 (rank 0," in (
        done.stdout
    )
    [check] = [check for check in examine(_environment(path)) if check.name == "store"]
    assert check.ok
    assert "is asked of the workers" in check.found
    with pytest.raises(StoreLostError, match="its scheduler asks the workers for it"):
        stored.read_stored(path)
    again = rebuilt(path)
    assert "what was left of the old one: " in again.stdout, again.stderr


def test_what_is_left_of_a_store_is_enough_to_ask_the_workers(tmp_path: Path) -> None:
    (tmp_path / "scheduler.db-wal").write_bytes(b"left")
    done = rebuilt(tmp_path)
    assert done.returncode == 0, done.stderr
    [archived] = tmp_path.glob("lost-*")
    assert f"what was left of the old one: {archived}" in done.stdout


def test_workers_that_contradict_each_other_are_named_before_anything_is_written(path: Path) -> None:
    worker_store(path, 1, job("another"))
    done = rebuilt(path)
    assert done.returncode == 39
    assert "2 different jobs" in done.stderr
    assert not (path / "scheduler.db").exists()


def test_a_store_that_is_there_is_not_rebuilt(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([job()], wall_ms=1)
    store.close()
    done = rebuilt(tmp_path)
    assert done.returncode != 0
    assert "holds no job whose scheduler's store is lost" in done.stderr


# --- a plan of a job whose store was rebuilt --------------------------------------------------------------------------------

GUESS = "nobody knows who was rank 1"


def rebuilt_with_a_guess(path: Path, *later: EventKind) -> None:
    """What a scheduler writes that has asked the workers, and could not plan."""
    store = SchedulerStore.open(path)
    said = EventRecord(kind=EventKind.STORE_REBUILT, details=f"worker_0: rank 0{UNSURE}{GUESS}")
    store.apply([job(), node(0), said, *(EventRecord(kind=kind) for kind in later)], wall_ms=2)
    store.close()


def test_people_see_what_a_plan_does_not_know(path: Path) -> None:
    rebuilt_with_a_guess(path)
    assert plan(stored.read_stored(path)).guesses == (GUESS,)
    shown = subprocess.run(
        [sys.executable, "-m", "recovery", "plan", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"not known: {GUESS}" in shown.stdout


def test_once_a_plan_is_made_nothing_rests_on_what_nobody_knew(path: Path) -> None:
    rebuilt_with_a_guess(path, EventKind.PLAN_MADE)
    assert plan(stored.read_stored(path)).guesses == ()
