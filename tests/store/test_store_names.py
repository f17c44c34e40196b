"""A name is durable only when its directory is: what is fsynced, and in which order, when a store comes to be."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.errors import StoreError
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is fsynced and renamed from now on, by name below `tmp_path`; of a directory also what is in it then."""
    recorded: list[str] = []
    fsync: Callable[[int], None] = os.fsync
    rename: Callable[[Path, Path], Path] = Path.rename

    def name_of(path: Path) -> str:
        return (
            re.sub(r"\.[0-9a-f]{16}\.new", ".new", str(path.relative_to(tmp_path.parent)).partition("/")[2])
            or "."
        )

    def recorded_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        inside = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        kept = [name for name in inside if not name.startswith(".") and not re.search(r"\.lock|-shm", name)]
        recorded.append(" ".join(["fsync", name_of(path), *(["with", *kept] if kept else [])]))
        fsync(descriptor)

    def recorded_rename(path: Path, target: Path) -> Path:
        recorded.append(f"rename {name_of(path)} to {name_of(target)}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    return recorded


def test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row(
    tmp_path: Path, calls: list[str]
) -> None:
    SchedulerStore.open(tmp_path / "job").close()

    assert calls == [
        "fsync . with job",
        "fsync job/.scheduler.db.new",
        "rename job/.scheduler.db.new to job/scheduler.db",
        "fsync job with scheduler.db",
        "fsync job with scheduler.db scheduler.db-wal scheduler.db.commits",
    ]


def test_every_directory_that_is_made_on_the_way_is_durable(tmp_path: Path, calls: list[str]) -> None:
    WorkerStore.open(tmp_path / "jobs" / "today" / "job", "w0").close()

    assert calls[:4] == [
        "fsync . with jobs",
        "fsync jobs with today",
        "fsync jobs/today with job",
        "fsync jobs/today/job with workers",
    ]


def test_the_log_of_a_store_that_was_there_is_durable_by_name_too(tmp_path: Path, calls: list[str]) -> None:
    SchedulerStore.open(tmp_path / "job").close()
    assert not (tmp_path / "job" / "scheduler.db-wal").exists(), "a clean close leaves no log"
    calls.clear()

    SchedulerStore.open(tmp_path / "job").close()

    assert calls == ["fsync job with scheduler.db scheduler.db-wal scheduler.db.commits"]


def test_an_owner_whose_lock_file_was_replaced_writes_no_more(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    lock = tmp_path / "scheduler.db.lock"
    # Kept, so that its inode is not used again.
    kept = lock.rename(tmp_path / "kept")
    lock.touch(mode=0o600)

    with pytest.raises(StoreError, match=r"STORE_WRITE: .*was removed or replaced"):
        store.apply([samples.job()], wall_ms=1)

    assert kept.exists()
    store.close()
