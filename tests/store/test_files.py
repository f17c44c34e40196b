"""Opening, refusing, roundtrips: with the real SQLite on a real disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import InvalidRequestError

from recovery.core.ids import RunId
from recovery.core.records import RunRecord
from recovery.errors import (
    RecoveryPathError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreNotOursError,
    StoreVersionError,
    StoreWalMissingError,
    StoreWriteError,
)
from recovery.store import engine, lock, migrations, paths, reader, repository, rows
from recovery.store.models import METADATA
from recovery.store.reader import read_events, read_scheduler, read_worker
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples

ROOT = Path(__file__).parents[2]


def kill_owner(path: Path) -> None:
    """A process that opens the store, writes, and is gone without closing."""
    code = (
        "import os, sys; from pathlib import Path; from recovery.store.repository import SchedulerStore;"
        "from tests.store import samples; store = SchedulerStore.open(Path(sys.argv[1]));"
        "store.apply([samples.job(5), samples.event()], wall_ms=1); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=False, timeout=30)
    assert done.returncode == -9


# --- what is kept ---------------------------------------------------------------------------------------------------------


def test_every_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path / "new" / "recovery")
    store.apply(samples.every_kind(), wall_ms=5)
    state = store.load()
    assert state.job == samples.job()
    assert state.nodes == (samples.node(),)
    assert state.checkpoints == (samples.checkpoint(),)
    assert [stored.event for stored in read_events(tmp_path / "new" / "recovery")] == [samples.event()]
    store.close()
    store.close()
    assert SchedulerStore.open(tmp_path / "new" / "recovery").load() == state


def test_a_row_is_replaced_by_its_key_and_an_event_is_appended(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1), samples.node(step=1), samples.event("a")], wall_ms=1)
    store.apply([samples.job(2), samples.node(step=2), samples.event("b")], wall_ms=2)
    assert store.load().job == samples.job(2)
    assert [row.step for row in store.load().nodes] == [2]
    assert [(one.sequence, one.wall_ms, one.event.reason) for one in read_events(tmp_path)] == [
        (1, 1, "a"),
        (2, 2, "b"),
    ]
    assert len(read_events(tmp_path, after=1)) == 1
    store.close()


def test_a_worker_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    store.apply(samples.every_kind(), wall_ms=1)
    state = store.load()
    assert (state.step is not None, state.node, len(state.directories)) == (True, samples.node(), 1)
    assert read_worker(tmp_path, "worker_3") == state
    store.close()
    assert (tmp_path / "workers" / "worker_3.db").stat().st_mode & 0o777 == 0o600
    shutil.copy(tmp_path / "workers" / "worker_3.db", tmp_path / "workers" / "worker_4.db")
    with pytest.raises(StoreNotOursError, match="belongs to 'worker:worker_3'"):
        WorkerStore.open(tmp_path, "worker_4")


def test_durability_is_asserted_on_the_connection(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    connection = store._database.connection
    assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    connection.rollback()
    store.close()


def test_a_file_system_that_cannot_keep_a_log_is_refused() -> None:
    with pytest.raises(RecoveryPathError, match="write-ahead log"):
        engine.harden(sqlite3.connect(":memory:"), "nowhere")


def test_the_wal_is_folded_after_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "FOLD_ROWS", 3)
    store = SchedulerStore.open(tmp_path)
    for number in range(5):
        store.apply([samples.event(str(number))], wall_ms=1)
    store.close()
    assert len(read_events(tmp_path)) == 5


def test_create_all_and_the_migrations_give_the_same_schema(tmp_path: Path) -> None:
    def shape(path: Path) -> dict[str, object]:
        looked = inspect(create_engine(f"sqlite:///{path}"))
        return {
            table: [
                (column["name"], str(column["type"]), column["nullable"])
                for column in looked.get_columns(table)
            ]
            for table in looked.get_table_names()
        }

    made, migrated = tmp_path / "made.db", tmp_path / "migrated.db"
    with create_engine(f"sqlite:///{made}").begin() as connection:
        METADATA.create_all(connection)
    with create_engine(f"sqlite:///{migrated}").begin() as connection:
        migrations.upgrade(connection)
    assert shape(made) == shape(migrated)


def test_an_older_file_is_brought_up_to_date_at_open(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = create_engine(f"sqlite:///{path}")
    with old.begin() as connection:
        migrations.upgrade(connection)
    with old.connect() as connection:
        migrations.migrate(connection, path)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'before'")
        connection.commit()
        with pytest.raises(Exception, match=r"before|locate"):
            migrations.migrate(connection, path, revisions=("before", "0001"))


# --- what is refused ------------------------------------------------------------------------------------------------------


def test_a_second_owner_is_told_who_has_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from recovery.store.repository import SchedulerStore;"
        "store = SchedulerStore.open(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        with pytest.raises(StoreLockedError, match=rf"in use by pid {owner.pid} on .* since 20\d\d-"):
            SchedulerStore.open(tmp_path)
        (tmp_path / "scheduler.db.lock.holder").write_bytes(b"half a no")
        with pytest.raises(StoreLockedError, match="pid unknown"):
            SchedulerStore.open(tmp_path)
        assert read_scheduler(tmp_path).job is None  # reading needs no lock
        assert owner.stdin is not None
        owner.stdin.close()
    SchedulerStore.open(tmp_path).close()


def test_an_owner_whose_lock_file_was_removed_writes_no_more(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    (tmp_path / "scheduler.db.lock").unlink()
    with pytest.raises(StoreWriteError, match="was removed or replaced"):
        store.apply([samples.job()], wall_ms=1)
    store.close()


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def two_versions(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO alembic_version VALUES ('0002')")


def no_mark(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 'perhaps' WHERE name = 'dirty'")


def flipped_row(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE nodes SET rank = 4")


def wrong_word(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE nodes SET state = 'undead'")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6_000])


def lonely_wal(path: Path) -> None:
    path.rename(path.with_name(path.name + "-wal"))


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda path: path.write_bytes(b""), StoreCorruptError),
        (lambda path: path.write_bytes(b"garbage" * 1_000), StoreNotOursError),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), StoreCorruptError),
        (foreign, StoreNotOursError),
        (newer, StoreVersionError),
        (two_versions, StoreCorruptError),
        (no_mark, StoreCorruptError),
        (flipped_row, StoreCorruptError),
        (wrong_word, StoreCorruptError),
        (truncated, StoreCorruptError),
        (lonely_wal, StoreCorruptError),
        (linked, StoreNotOursError),
        (directory, StoreNotOursError),
    ],
)
def test_a_file_that_is_not_right_is_refused_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[Path], object], error: type[StoreError]
) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply(samples.every_kind(), wall_ms=1)
    store.close()
    path = tmp_path / "scheduler.db"
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error):
        SchedulerStore.open(tmp_path)
    assert (path.read_bytes() if path.is_file() else None) == before
    if damage is not no_mark:  # a reader does not care who closed the file, as long as nothing can be missing
        with pytest.raises((error, RecoveryPathError)):
            read_scheduler(tmp_path)


def test_flipped_bits_are_noticed_before_use(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply(
        [*samples.every_kind(), *(samples.checkpoint(step, rank) for step in range(20) for rank in range(4))],
        wall_ms=1,
    )
    expected = store.load()
    store.close()
    path = tmp_path / "scheduler.db"
    good = path.read_bytes()
    wrong = 0
    for position in range(100, len(good), 997):
        path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        try:
            state = read_scheduler(tmp_path)
        except (StoreError, RecoveryPathError):
            continue
        wrong += state != expected
    assert wrong == 0


def test_a_missing_wal_is_noticed_and_can_be_accepted_once(tmp_path: Path) -> None:
    kill_owner(tmp_path)
    (tmp_path / "scheduler.db-wal").rename(tmp_path / "saved")
    with pytest.raises(StoreWalMissingError, match="MS_STORE_WITHOUT_WAL=1"):
        SchedulerStore.open(tmp_path)
    with pytest.raises(StoreWalMissingError):
        read_scheduler(tmp_path)
    assert read_scheduler(tmp_path, accept_without_wal=True).job is None
    SchedulerStore.open(tmp_path, accept_without_wal=True).close()
    SchedulerStore.open(tmp_path).close()


def test_a_killed_owner_leaves_what_it_acknowledged(tmp_path: Path) -> None:
    kill_owner(tmp_path)
    assert read_scheduler(tmp_path).job == samples.job(5)
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm", "copy"))
    assert read_scheduler(tmp_path / "copy").job == samples.job(
        5
    )  # a copy without its index is read from a private one
    store = SchedulerStore.open(tmp_path)
    assert store.load().job == samples.job(5)
    store.close()


def test_nothing_there_is_an_error_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(RecoveryPathError, match=r"holds no scheduler\.db"):
        read_scheduler(tmp_path)


def test_a_file_that_changes_at_every_copy_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SchedulerStore.open(tmp_path).close()
    facts = iter(range(1_000))
    monkeypatch.setattr(reader, "_facts", lambda path: (next(facts),))
    with pytest.raises(StoreWriteError, match="changed each time"):
        read_scheduler(tmp_path)


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


def test_a_value_that_cannot_be_stored_is_an_error_of_the_write(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    with pytest.raises(StoreWriteError):
        store.apply([RunRecord(run=RunId(2**70))], wall_ms=1)
    store.close()  # after a failed write the files stay as they are
    assert (tmp_path / "scheduler.db-wal").exists()
    SchedulerStore.open(tmp_path).close()


def test_a_failed_clean_close_leaves_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job()], wall_ms=1)

    def fail(self: object, *, dirty: bool) -> None:
        raise StoreWriteError(path="p", reason="r")

    with monkeypatch.context() as patch:
        patch.setattr(engine.Database, "_mark", fail)
        store.close()
    again = SchedulerStore.open(tmp_path)
    assert again.load().job == samples.job()
    again.close()


def test_a_forked_child_leaves_the_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SchedulerStore.open(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        store._database.close()
    store.apply([samples.job()], wall_ms=1)
    store.close()


@pytest.mark.parametrize(
    ("error", "reading", "kind"),
    [
        (sqlite3.OperationalError("database or disk is full"), False, StoreFullError),
        (sqlite3.OperationalError("disk I/O error"), False, StoreWriteError),
        (sqlite3.OperationalError("disk I/O error"), True, StoreCorruptError),
        (sqlite3.DatabaseError("database disk image is malformed"), False, StoreCorruptError),
        (PermissionError(13, "Permission denied"), False, RecoveryPathError),
        (InvalidRequestError("in the middle of a transaction"), False, StoreWriteError),
    ],
)
def test_errors_of_sqlite_become_ours_at_one_border(
    tmp_path: Path, error: Exception, reading: bool, kind: type[Exception]
) -> None:
    with pytest.raises(kind), engine.translated(tmp_path / "scheduler.db", reading=reading):
        raise error


def test_a_damaged_page_is_found_at_open(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.event("x" * 100) for _ in range(500)], wall_ms=1)
    store.close()
    path = tmp_path / "scheduler.db"
    content = bytearray(path.read_bytes())
    last_page = len(content) - 4096
    content[last_page + 8 : last_page + 12] = b"\x0f\xf0\x0f\xf0"  # where its first rows lie
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError):
        SchedulerStore.open(tmp_path)


def test_a_row_that_no_release_wrote_is_refused_although_its_digest_fits(tmp_path: Path) -> None:
    shape = rows.SHAPES[RunRecord]
    row = {"run": "one", "outcome": "", "reason": "", "wall_ms": 1}
    row["digest"] = rows._digest(shape, [row["run"], "", ""], 1)
    with pytest.raises(StoreCorruptError, match="no release wrote"):
        rows.record_of(RunRecord, row, tmp_path / "scheduler.db")
