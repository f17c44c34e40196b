"""Opening, refusing, roundtrips: with the real SQLite on a real disk."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from sqlalchemy import Connection, create_engine, inspect

from recovery.core.records import EventKind
from recovery.errors import RecoveryPathError, StoreError, StoreLockedError
from recovery.store import connections, migrations, reader, repository, snapshot
from recovery.store.models import METADATA
from recovery.store.reader import read_events, read_newest_events, read_scheduler, read_worker
from recovery.store.repository import SchedulerStore, WorkerStore
from recovery.store.stored_records import scheduler_records
from tests.store import samples

ROOT = Path(__file__).parents[2]


def kill_owner(path: Path) -> None:
    """A process that opens the store, writes, and is gone without closing."""
    code = (
        "import os, sys; from pathlib import Path; from recovery.store.repository import SchedulerStore;"
        "from tests.store import samples; store = SchedulerStore.open(Path(sys.argv[1]));"
        "store.apply([samples.job(5), samples.event()], wall_ms=1); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=False, timeout=300)
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


def test_the_newest_events_of_some_kinds_are_read_newest_first(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    committed = [samples.event("a"), samples.event("b"), samples.event("c")]
    other = msgspec.structs.replace(samples.event("d"), kind=EventKind.NODE_ADMITTED)
    store.apply([*committed, other], wall_ms=1)
    store.close()
    kind = committed[0].kind
    assert [one.event.reason for one in read_newest_events(tmp_path, (kind,), 2)] == ["c", "b"]
    assert [one.event.reason for one in read_newest_events(tmp_path, (kind, other.kind), 2)] == ["d", "c"]
    assert read_newest_events(tmp_path, (EventKind.JOB_FINISHED,), 2) == ()


def test_a_worker_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    store.apply(samples.every_kind(), wall_ms=1)
    state = store.load()
    assert (state.step is not None, state.node, len(state.directories)) == (True, samples.node(), 1)
    assert read_worker(tmp_path, "worker_3") == state
    store.close()
    assert (tmp_path / "workers" / "worker_3.db").stat().st_mode & 0o777 == 0o600
    shutil.copy(tmp_path / "workers" / "worker_3.db", tmp_path / "workers" / "worker_4.db")
    with pytest.raises(StoreError, match=r"STORE_NOT_OURS: .*belongs to 'worker:worker_3'"):
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
        connections.harden(sqlite3.connect(":memory:"), "nowhere")


def test_the_wal_is_folded_after_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "FOLD_PAGES", 6)
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
            migrations.migrate(connection, path, revisions=("before", migrations.REVISIONS[-1]))


# --- what is refused ------------------------------------------------------------------------------------------------------


def test_a_second_owner_learns_who_has_it(tmp_path: Path) -> None:
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
        # Reading needs no lock.
        assert read_scheduler(tmp_path).job is None
        assert owner.stdin is not None
        owner.stdin.close()
    SchedulerStore.open(tmp_path).close()


def test_an_owner_whose_lock_file_was_removed_writes_no_more(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    (tmp_path / "scheduler.db.lock").unlink()
    with pytest.raises(StoreError, match=r"STORE_WRITE: .*was removed or replaced"):
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
        connection.execute("INSERT INTO alembic_version VALUES ('another')")


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
    ("damage", "code"),
    [
        (lambda path: path.write_bytes(b""), "STORE_CORRUPT"),
        (lambda path: path.write_bytes(b"garbage" * 1_000), "STORE_NOT_OURS"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "STORE_CORRUPT"),
        (foreign, "STORE_NOT_OURS"),
        (newer, "STORE_VERSION"),
        (two_versions, "STORE_CORRUPT"),
        (no_mark, "STORE_CORRUPT"),
        (flipped_row, "STORE_CORRUPT"),
        (wrong_word, "STORE_CORRUPT"),
        (truncated, "STORE_CORRUPT"),
        (lonely_wal, "STORE_CORRUPT"),
        (linked, "STORE_NOT_OURS"),
        (directory, "STORE_NOT_OURS"),
    ],
)
def test_a_file_that_is_not_right_is_refused_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[Path], object], code: str
) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply(samples.every_kind(), wall_ms=1)
    store.close()
    path = tmp_path / "scheduler.db"
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=code):
        SchedulerStore.open(tmp_path)
    assert (path.read_bytes() if path.is_file() else None) == before
    # A reader does not care who closed the file, as long as nothing can be missing.
    if damage is not no_mark:
        with pytest.raises((StoreError, RecoveryPathError), match=f"{code}|RECOVERY_PATH"):
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
    with pytest.raises(StoreError, match=r"STORE_WAL_MISSING: .*MS_STORE_WITHOUT_WAL=1"):
        SchedulerStore.open(tmp_path)
    with pytest.raises(StoreError, match="STORE_WAL_MISSING"):
        read_scheduler(tmp_path)
    assert read_scheduler(tmp_path, accept_without_wal=True).job is None
    SchedulerStore.open(tmp_path, accept_without_wal=True).close()
    SchedulerStore.open(tmp_path).close()


def test_a_killed_owner_leaves_what_it_acknowledged(tmp_path: Path) -> None:
    kill_owner(tmp_path)
    assert read_scheduler(tmp_path).job == samples.job(5)
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm", "copy"))
    # A copy without its index is read from a private one.
    assert read_scheduler(tmp_path / "copy").job == samples.job(5)
    store = SchedulerStore.open(tmp_path)
    assert store.load().job == samples.job(5)
    store.close()


def test_nothing_there_is_an_error_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(RecoveryPathError, match=r"holds no scheduler\.db"):
        read_scheduler(tmp_path)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_changes_whenever_it_is_read_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    SchedulerStore.open(tmp_path).close()
    if damaged:
        (tmp_path / "scheduler.db").write_bytes(b"half of it")
    facts = iter(range(1_000))
    monkeypatch.setattr(snapshot, "_facts", lambda path: (next(facts),))
    with pytest.raises(StoreError, match=r"STORE_WRITE: .*changed each time"):
        read_scheduler(tmp_path)


def test_a_file_that_an_owner_takes_and_leaves_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job(1)], wall_ms=1)
    store.close()
    asked: list[object] = []

    def meanwhile(connection: Connection, path: Path) -> object:
        asked.append(path)
        if len(asked) == 1:
            owner = SchedulerStore.open(tmp_path)
            owner.apply([samples.job(2)], wall_ms=2)
            owner.close()
        return scheduler_records(connection, path)

    monkeypatch.setattr(reader, "scheduler_records", meanwhile)
    assert read_scheduler(tmp_path).job == samples.job(2)
    assert len(asked) == 2


def test_a_log_that_an_owner_folds_while_it_is_copied_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_owner(tmp_path)
    (tmp_path / "scheduler.db-shm").unlink()
    copied: list[Path] = []

    def copy_late(source: Path, place: Path) -> None:
        copied.append(source)
        if len(copied) == 1:
            SchedulerStore.open(tmp_path).close()
        shutil.copyfile(source, place)

    monkeypatch.setattr(snapshot, "shutil", SimpleNamespace(copyfile=copy_late))
    assert read_scheduler(tmp_path).job == samples.job(5)
    assert [path.name for path in copied] == ["scheduler.db", "scheduler.db-wal"]
