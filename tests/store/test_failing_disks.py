"""Paths and writes that fail."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import filelock
import pytest
from sqlalchemy.exc import InvalidRequestError

from recovery import file_systems
from recovery.core.ids import RunId
from recovery.core.records import RunRecord
from recovery.errors import RecoveryError, RecoveryPathError, StoreError, StoreFullError
from recovery.store import connections, engine, lock, paths, rows
from recovery.store.repository import SchedulerStore
from tests.store import samples

ROOT = Path(__file__).parents[2]


# --- the recovery path ------------------------------------------------------------------------------------------------------


def test_a_path_that_is_a_file_or_too_long_or_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path / "file", "is not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "file" / "below", "cannot be used"),
    ):
        with pytest.raises(RecoveryPathError, match=reason):
            SchedulerStore.open(path)


def test_another_users_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(RecoveryPathError, match=r"belongs to user \d+ and this process runs as user 12345"):
        paths.prepare_directory(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_where_every_user_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(RecoveryPathError, match=f"may be written by every user \\(mode {mode:04o}\\)"):
        paths.prepare_directory(shared)

    assert list(shared.iterdir()) == []
    paths.prepare_directory(shared / "mine")
    assert (shared / "mine").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "smb3", "afs", "fuse.sshfs", "fuse.s3fs", "fuse")),
        *((kind, False) for kind in ("ext4", "overlay", "tmpfs", "9p", "fuseblk", "fuse.fuse-overlayfs", "")),
    ],
)
def test_a_file_system_that_keeps_no_store_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_refused: bool
) -> None:
    monkeypatch.setattr(file_systems, "kind_of", lambda path: kind)
    if not is_refused:
        paths.prepare_directory(tmp_path)
        return
    with pytest.raises(RecoveryPathError, match=f"of the kind {kind},.* MS_JOB_TOKEN"):
        SchedulerStore.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Facts:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda path: Facts())
    with pytest.raises(RecoveryPathError, match="Read-only file system"):
        paths.prepare_directory(tmp_path)


def test_a_directory_without_rights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)
    monkeypatch.setattr(os, "supports_effective_ids", {os.access})
    with pytest.raises(RecoveryPathError, match="Permission denied"):
        paths.prepare_directory(tmp_path)


def test_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SchedulerStore.open(tmp_path).close()
    path = tmp_path / "scheduler.db"

    def deny(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", deny)
        with pytest.raises(RecoveryPathError):
            paths.is_there(path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", deny)
        patch.setattr(Path, "is_symlink", lambda path: False)
        with pytest.raises(RecoveryPathError):
            paths.is_there(path)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_write", deny)
        with pytest.raises(RecoveryPathError):
            SchedulerStore.open(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(filelock.FileLock, "acquire", deny)
        with pytest.raises(RecoveryPathError):
            SchedulerStore.open(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "fsync_directory", deny)
        with pytest.raises(RecoveryPathError):
            SchedulerStore.open(tmp_path / "fresh")
    SchedulerStore.open(tmp_path).close()


# --- writes that fail ---------------------------------------------------------------------------------------------------------


def limit_pages(store: SchedulerStore, pages: int) -> None:
    connection = store._database.connection
    connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    connection.rollback()


def test_a_full_disk_refuses_the_batch_whole_and_the_next_one_works(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1)], wall_ms=1)
    limit_pages(store, 1)
    with pytest.raises(StoreFullError):
        store.apply([samples.job(2), *(samples.event("x" * 500) for _ in range(200))], wall_ms=2)
    assert store.load().job == samples.job(1)
    limit_pages(store, 1_000_000)
    store.apply([samples.job(3)], wall_ms=3)
    assert store.load().job == samples.job(3)
    store.close()


def test_a_lock_file_that_cannot_be_looked_at_is_an_error_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SchedulerStore.open(tmp_path)

    def unreadable(self: lock.OwnerLock) -> tuple[int, int]:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(lock.OwnerLock, "_found", unreadable)
        with pytest.raises(
            StoreError, match=r"STORE_WRITE: .*scheduler\.db\.lock cannot be looked at: Input/output error"
        ):
            store.apply([samples.event("1")], wall_ms=1)
    store.close()


def test_a_value_that_cannot_be_stored_is_an_error_of_the_write(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    with pytest.raises(StoreError, match="STORE_WRITE"):
        store.apply([RunRecord(run=RunId(2**70))], wall_ms=1)
    # After a failed write the files stay as they are.
    store.close()
    assert (tmp_path / "scheduler.db-wal").exists()
    SchedulerStore.open(tmp_path).close()


def test_a_failed_clean_close_leaves_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job()], wall_ms=1)

    def fail(self: object, *, dirty: bool) -> None:
        raise StoreError("STORE_WRITE", path="p", reason="r")

    with monkeypatch.context() as patch:
        patch.setattr(engine.Database, "_mark", fail)
        store.close()
    again = SchedulerStore.open(tmp_path)
    assert again.load().job == samples.job()
    again.close()


@pytest.mark.parametrize(
    ("error", "reading", "code"),
    [
        (sqlite3.OperationalError("database or disk is full"), False, "STORE_FULL"),
        (sqlite3.OperationalError("disk I/O error"), False, "STORE_WRITE"),
        (sqlite3.OperationalError("database is locked"), True, "STORE_BUSY"),
        (sqlite3.OperationalError("disk I/O error"), True, "STORE_REFUSED"),
        (sqlite3.OperationalError("unable to open database file"), True, "STORE_CORRUPT"),
        (sqlite3.DatabaseError("database disk image is malformed"), False, "STORE_CORRUPT"),
        (PermissionError(13, "Permission denied"), False, "RECOVERY_PATH"),
        (InvalidRequestError("in the middle of a transaction"), False, "STORE_WRITE"),
    ],
)
def test_errors_of_sqlite_become_ours_at_one_border(
    tmp_path: Path, error: Exception, reading: bool, code: str
) -> None:
    with (
        pytest.raises(RecoveryError, match=code),
        connections.translated(tmp_path / "scheduler.db", reading=reading),
    ):
        raise error


def test_a_connection_that_was_given_up_opens_no_file_again(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    connection = connections.connect(path, wal=False)
    connection.invalidate()

    with (
        pytest.raises(StoreError, match=r"STORE_WRITE: .*has ended"),
        connections.translated(path, reading=False),
    ):
        connection.begin()
    connection.close()


def test_a_damaged_page_is_found_at_open(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.event("x" * 100) for _ in range(500)], wall_ms=1)
    store.close()
    path = tmp_path / "scheduler.db"
    content = bytearray(path.read_bytes())
    last_page = len(content) - 4096
    # Where its first rows lie.
    content[last_page + 8 : last_page + 12] = b"\x0f\xf0\x0f\xf0"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="STORE_CORRUPT"):
        SchedulerStore.open(tmp_path)


def test_a_row_that_no_release_wrote_is_refused_although_its_digest_fits(tmp_path: Path) -> None:
    shape = rows.SHAPES[RunRecord]
    row = ["one", "", "", 1, rows._digest(shape, ["one", "", ""], 1)]
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*no release wrote"):
        rows.record_of(RunRecord, row, tmp_path / "scheduler.db")
