"""Archiving a job: everything is kept, nobody's open store is touched, and the path begins a new job."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from recovery.errors import RecoveryPathError, StoreLockedError
from recovery.store.archive import (
    archive_scheduler_store,
    archive_stores,
    archived_jobs,
    scheduler_files,
)
from recovery.store.reader import read_scheduler, read_worker, stored_workers
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples
from tests.store.test_files import kill_owner


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A job with two workers' files."""
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(3)], wall_ms=1)
    store.close()
    for name in ("worker_0", "worker_1"):
        worker = WorkerStore.open(tmp_path, name)
        worker.apply([samples.checkpoint()], wall_ms=1)
        worker.close()
    return tmp_path


def rows(directory: Path) -> dict[str, str]:
    """Digest of every file that holds rows, by its name below a directory."""
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.suffix in (".db", ".db-wal", ".commits")
    }


def test_all_is_kept_and_the_path_begins_a_new_job(path: Path) -> None:
    before = rows(path)

    archive = archive_stores(path, "before")

    assert archive == path / "before"
    assert rows(archive) == before
    assert read_scheduler(archive).job == samples.job(3)
    assert read_worker(archive, "worker_1").checkpoints == (samples.checkpoint(),)
    store = SchedulerStore.open(path)
    assert store.load().job is None
    store.close()
    worker = WorkerStore.open(path, "worker_1")
    assert worker.load().checkpoints == ()
    worker.close()


def test_stores_of_workers_that_are_spared_stay(path: Path) -> None:
    archive = archive_stores(path, "before", pinned={"worker_1"})

    assert read_worker(path, "worker_1").checkpoints == (samples.checkpoint(),)
    assert "worker_1" not in stored_workers(archive)
    assert read_scheduler(archive).job == samples.job(3)


def test_what_a_killed_owner_left_goes_along_whole(tmp_path: Path) -> None:
    kill_owner(tmp_path)
    assert (tmp_path / "scheduler.db-wal").stat().st_size

    archive = archive_stores(tmp_path, "before")

    assert read_scheduler(archive).job == samples.job(5)
    assert [
        file.name for file in tmp_path.glob("scheduler.db*") if not file.name.startswith("scheduler.db.lock")
    ] == []


@pytest.mark.parametrize("whose", ["scheduler", "worker_1"])
def test_an_open_store_is_left_alone_with_all_others(path: Path, whose: str) -> None:
    before = rows(path)
    owner = SchedulerStore.open(path) if whose == "scheduler" else WorkerStore.open(path, whose)
    with pytest.raises(StoreLockedError, match=rf"{whose}\.db"):
        archive_stores(path, "before")
    owner.close()
    assert set(rows(path)) == set(before)
    assert not (path / "before").exists()


def test_where_nothing_is_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(RecoveryPathError, match=r"holds no scheduler\.db"):
        archive_stores(tmp_path, "before")
    with pytest.raises(RecoveryPathError, match=r"holds no scheduler\.db"):
        archive_stores(tmp_path / "none", "before")
    assert list(tmp_path.iterdir()) == []


def test_who_looks_for_an_archived_job_is_told_where_it_is(path: Path) -> None:
    archive_stores(path, "reset-1")
    with pytest.raises(RecoveryPathError, match=r"archived as reset-1.*recovery status .*/reset-1`"):
        read_scheduler(path)
    (path / "reset-2/workers").mkdir(parents=True)
    with pytest.raises(RecoveryPathError, match=r"workers on this host were archived as reset-2"):
        read_scheduler(path)


def test_an_earlier_one_is_never_written_over(path: Path) -> None:
    archive_stores(path, "before")
    SchedulerStore.open(path).close()
    with pytest.raises(RecoveryPathError, match="File exists"):
        archive_stores(path, "before")
    assert read_scheduler(path).job is None


def test_workers_that_cannot_be_listed_are_an_error(path: Path) -> None:
    (path / "workers").rename(path / "elsewhere")
    (path / "workers").write_text("no directory")
    with pytest.raises(RecoveryPathError, match="Not a directory"):
        archive_stores(path, "before")


def test_a_job_whose_schedulers_store_is_gone_is_known_by_its_workers_stores(path: Path) -> None:
    for part in path.glob("scheduler.db*"):
        part.unlink()
    worker = WorkerStore.open(path, "worker_0")
    worker.apply([samples.job(3)], wall_ms=1)
    worker.close()
    (path / "workers/a copy of it.db").write_text("no node is called so")

    archive_stores(path, "reset-1")

    assert archived_jobs(path) == (frozenset({samples.job(3).job}), ())


def test_what_is_left_of_a_lost_schedulers_store_is_put_away_alone(path: Path) -> None:
    assert archive_scheduler_store(path / "workers", "rebuilt-0") is None, "there is nothing of one"
    before = rows(path)
    (path / "scheduler.db").unlink()

    archive = archive_scheduler_store(path, "rebuilt-1")

    assert archive == path / "rebuilt-1"
    assert scheduler_files(path) == ()
    assert set(rows(archive)) == {name for name in before if name.startswith("scheduler.db")} - {
        "scheduler.db"
    }
    assert read_worker(path, "worker_1").checkpoints == (samples.checkpoint(),), "workers keep theirs"


def test_archived_jobs_that_can_be_read_count_beside_one_that_cannot(path: Path) -> None:
    archive_stores(path, "reset-1")
    store = SchedulerStore.open(path)
    store.apply([msgspec.structs.replace(samples.job(4), job="another")], wall_ms=1)
    store.close()
    broken = archive_stores(path, "reset-2")
    (broken / "scheduler.db").write_bytes(b"no store" * 1_000)

    jobs, unreadable = archived_jobs(path)

    assert jobs == {samples.job(3).job}
    [why] = unreadable
    assert "reset-2" in why
