"""A process that reads the very store that it has open keeps the locks by which others know that it is open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.core.ids import RunId
from recovery.errors import RecoveryPathError, StoreError
from recovery.store import engine, reader
from recovery.store.file_identity import open_here
from recovery.store.paths import scheduler_path, worker_path
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples

_LOOK = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM meta'); c.close()"


def others_look(database: Path) -> None:
    """A shell or a backup: its close folds and deletes the -wal, unless a lock says that somebody has the file open."""
    subprocess.run([sys.executable, "-c", _LOOK, str(database)], check=True, timeout=300)


QUESTIONS: dict[str, Callable[[Path], object]] = {
    "notices": lambda path: reader.read_notices(path, RunId(1)),
    "failed work": lambda path: reader.read_failed_work(path, RunId(1)),
    "records": reader.read_scheduler,
    "events": reader.read_events,
    "all of it": reader.check_scheduler,
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_scheduler_that_asks_its_own_store_keeps_its_log(
    tmp_path: Path, question: Callable[[Path], object]
) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1)], wall_ms=1)

    question(tmp_path)
    others_look(scheduler_path(tmp_path))

    store.apply([samples.job(2)], wall_ms=2)
    store.close()
    assert reader.read_scheduler(tmp_path).job == samples.job(2)


def test_the_same_file_by_another_name_is_the_own_one_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "job")
    store = WorkerStore.open(tmp_path / "job", "w")
    store.apply([samples.job()], wall_ms=1)

    for other in (tmp_path / "link", tmp_path / "job" / ".." / "job"):
        assert reader.read_worker(other, "w").job == samples.job()
    others_look(worker_path(tmp_path / "job", "w"))

    store.check()
    store.close()


def test_an_index_of_the_log_that_was_deleted_is_no_reason_to_copy_the_own_file(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1)], wall_ms=1)
    (tmp_path / "scheduler.db-shm").unlink()

    assert reader.read_scheduler(tmp_path).job == samples.job(1)
    others_look(scheduler_path(tmp_path))

    store.check()
    store.close()


def test_who_asks_its_own_store_whose_log_was_deleted_is_not_given_a_new_one(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1)], wall_ms=1)
    (tmp_path / "scheduler.db-wal").unlink()

    with pytest.raises(StoreError, match=r"STORE_GONE: .*scheduler\.db-wal is gone"):
        reader.read_scheduler(tmp_path)
    assert not (tmp_path / "scheduler.db-wal").exists()
    store.close()


def test_a_file_is_the_own_one_only_while_it_is_open_and_only_in_the_process_that_opened_it(
    tmp_path: Path,
) -> None:
    database = scheduler_path(tmp_path)
    assert open_here(database) is None, "there is no file"
    store = SchedulerStore.open(tmp_path)
    assert open_here(database) is not None
    child = os.fork()
    if not child:
        os._exit(0 if open_here(database) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    store.close()
    assert open_here(database) is None


def test_a_store_that_cannot_be_opened_is_nobodys_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SchedulerStore.open(tmp_path).close()

    def deny(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("connect", "fsync_directory"):
        with monkeypatch.context() as patched:
            patched.setattr(engine, name, deny)
            with pytest.raises(RecoveryPathError, match="denied"):
                SchedulerStore.open(tmp_path)
        assert open_here(scheduler_path(tmp_path)) is None, name
