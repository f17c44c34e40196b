"""What hinders a write for a while, a used up quota or another program's lock, costs no batch, and a read nothing at all."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from recovery.errors import RecoveryError, RecoveryPathError, StoreBusyError, StoreError, StoreFullError
from recovery.store import connections, paths
from recovery.store.reader import read_events, read_scheduler
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.faults.intercepted import GO_ON, End, is_usable, run_child
from tests.needs import lacks
from tests.store import samples

DEADLINE_S = 60.0


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another program writes, or reads so that nobody may write."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchedulerStore]:
    monkeypatch.setattr(connections, "BUSY_S", 0.05)
    opened = SchedulerStore.open(tmp_path)
    opened.apply([samples.job(1)], wall_ms=1)
    yield opened
    opened.close()


def test_a_batch_that_meets_anothers_lock_is_written_once_the_lock_is_gone(
    store: SchedulerStore, tmp_path: Path
) -> None:
    with locked(tmp_path / "scheduler.db"):
        for _ in range(2):
            with pytest.raises(StoreBusyError, match=r"STORE_BUSY: .*scheduler\.db: another program keeps"):
                store.apply([samples.job(2), samples.event("once")], wall_ms=2)

    store.apply([samples.job(2), samples.event("once")], wall_ms=2)
    assert store.load().job == samples.job(2)
    assert [line.event.reason for line in read_events(tmp_path)] == ["once"]


def test_a_writer_waits_for_the_lock_and_says_so_once(store: SchedulerStore, tmp_path: Path) -> None:
    failures: list[StoreError] = []
    released: list[object] = []
    failed, done = threading.Event(), threading.Event()

    def on_failure(error: StoreError) -> None:
        failures.append(error)
        failed.set()

    def on_durable(ticket: object) -> None:
        released.append(ticket)
        done.set()

    writer = Writer(store, on_durable=on_durable, on_failure=on_failure, wall_ms=lambda: 1)
    with locked(tmp_path / "scheduler.db"):
        writer.submit([samples.job(2)], "answer")
        assert failed.wait(DEADLINE_S)
        assert released == []
    assert done.wait(DEADLINE_S)
    assert writer.close(DEADLINE_S)

    assert [error.code for error in failures] == ["STORE_BUSY"]
    assert store.load().job == samples.job(2)


def test_an_owner_reads_its_store_whoever_holds_the_lock(store: SchedulerStore, tmp_path: Path) -> None:
    with locked(tmp_path / "scheduler.db"):
        assert store.load().job == samples.job(1)
        assert store.away_ms() is not None
        assert read_scheduler(tmp_path).job == samples.job(1)


def test_a_store_that_is_locked_at_its_opening_is_not_called_damaged(
    store: SchedulerStore, tmp_path: Path
) -> None:
    store.close()

    with locked(tmp_path / "scheduler.db"), pytest.raises(StoreBusyError) as caught:
        SchedulerStore.open(tmp_path)

    assert caught.value.temporary
    again = SchedulerStore.open(tmp_path)
    assert again.load().job == samples.job(1)
    again.close()


def test_who_is_to_wait_at_the_opening_opens_once_the_lock_is_gone(
    store: SchedulerStore, tmp_path: Path
) -> None:
    store.close()
    waited: list[StoreBusyError] = []
    with ExitStack() as shell:
        shell.enter_context(locked(tmp_path / "scheduler.db"))

        def on_busy(error: StoreBusyError) -> None:
            waited.append(error)
            if len(waited) == 2:
                shell.close()

        again = SchedulerStore.open(tmp_path, on_busy=on_busy)
    assert [error.code for error in waited] == ["STORE_BUSY"] * 2
    assert again.load().job == samples.job(1)
    again.close()


# --- a quota ----------------------------------------------------------------------------------------------------------------


def work_with_refused_writes(tmp_path: Path, number: int) -> End:
    """A store whose writes are refused from its second batch on, until the first that fails has been told."""

    def work(acknowledge: Callable[[], None]) -> None:
        store = SchedulerStore.open(tmp_path)
        store.apply([samples.job(1)], wall_ms=1)
        (tmp_path / "refuse").touch()
        with pytest.raises(StoreFullError, match=os.strerror(number)):
            store.apply([samples.job(2)], wall_ms=2)
        acknowledge()
        (tmp_path / "refuse").unlink()
        store.apply([samples.job(3)], wall_ms=3)
        acknowledge()
        store.close()

    def decide(call: str) -> int:
        return number if (tmp_path / "refuse").exists() else GO_ON

    return run_child(work, ("write", "pwrite64"), decide)


def test_a_used_up_quota_is_a_full_disk_and_any_other_refusal_is_none(tmp_path: Path) -> None:
    why = is_usable()
    if why:
        lacks(why, "run on Linux 5.5 or newer")

    assert work_with_refused_writes(tmp_path / "quota", errno.EDQUOT).acknowledged == 2
    assert read_scheduler(tmp_path / "quota").job == samples.job(3)
    broken = work_with_refused_writes(tmp_path / "broken", errno.EIO)
    assert (broken.acknowledged, "STORE_WRITE" in broken.said) == (0, True)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EDQUOT, "STORE_FULL"),
        (errno.ENOSPC, "STORE_FULL"),
        (errno.EIO, "STORE_WRITE"),
        (0, "STORE_WRITE"),
    ],
)
def test_which_error_sqlite_met_is_found_by_a_write_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    trial = tempfile.TemporaryFile

    def open_trial(**options: object) -> object:
        if number:
            raise OSError(number, os.strerror(number))
        return trial(**options)  # type: ignore[call-overload]  # what it was called with

    monkeypatch.setattr(tempfile, "TemporaryFile", open_trial)

    with pytest.raises(RecoveryError, match=code), connections.translated(tmp_path / "db", reading=False):
        raise error


def test_a_quota_that_lets_no_store_be_made_says_what_helps(tmp_path: Path) -> None:
    error = paths.refused(tmp_path, OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))

    assert isinstance(error, RecoveryPathError)
    assert "Free space on that file system, or have this user's quota raised." in str(error)
