"""Every command says of a path whose scheduler's store is lost that it is, and what to do, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery.cli.rebuild import rebuild_store
from recovery.core.ids import RunId
from recovery.core.records import DirectoryRecord, EventKind, EventRecord
from recovery.errors import RecoveryPathError, StoreLostError
from recovery.report import stored
from recovery.report.doctor import examine
from recovery.report.plan import plan
from recovery.store.repository import SchedulerStore, WorkerStore
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


def test_a_rebuilt_store_is_planned_from_its_newest_common_step(path: Path) -> None:
    sentence, archive = rebuild_store(path)

    assert sentence.startswith("worker_0: rank 0, generation 2, holds steps 10; worker_1: rank 1")
    assert archive is None
    found = plan(stored.read_stored(path))
    assert (found.action, found.step) == ("resume", 10)
    assert [file.verified for file in found.files] == [True, True]
    assert [check for check in examine(_environment(path)) if check.name == "store"] == []


def test_a_store_that_is_there_is_not_rebuilt(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([job()], wall_ms=1)
    store.close()
    with pytest.raises(RecoveryPathError, match="holds no job whose scheduler's store is lost"):
        rebuild_store(tmp_path)


GUESS = "rank 1 is known only up to generation 2 of 3"
WINDOWS = "whose rejoin window was open: every process that was here counts as live for one lease"


def rank_1_is_behind(path: Path) -> None:
    store = WorkerStore.open(path, "worker_0")
    store.apply([job(generation=3), generation(3, 10)], wall_ms=2)
    store.close()
    rebuild_store(path)


def test_a_plan_says_of_which_rank_it_does_not_know_everything(path: Path) -> None:
    rank_1_is_behind(path)
    assert plan(stored.read_stored(path)).guesses == (WINDOWS, GUESS)


def test_people_see_what_a_plan_does_not_know(path: Path) -> None:
    rank_1_is_behind(path)
    shown = subprocess.run(
        [sys.executable, "-m", "recovery", "plan", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"not known: {GUESS}" in shown.stdout


def test_once_a_plan_is_made_nothing_rests_on_what_nobody_knew(path: Path) -> None:
    rebuild_store(path)
    assert plan(stored.read_stored(path)).guesses == (WINDOWS,)
    store = SchedulerStore.open(path)
    store.apply([EventRecord(kind=EventKind.PLAN_MADE)], wall_ms=2)
    store.close()
    assert plan(stored.read_stored(path)).guesses == ()


def test_a_plan_says_when_nobody_knows_whether_a_step_was_held_by_all(path: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "ckpt" / "1").iterdir():
        file.unlink()
    rebuild_store(path)
    assert (
        "whether any step was ever held by all ranks: taken for so, since some have saved"
        in plan(stored.read_stored(path)).guesses
    )
