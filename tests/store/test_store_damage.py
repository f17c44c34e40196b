"""What is refused, and that refusing changes nothing; the schema, fresh and migrated."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recovery.errors import StoreError, StoreLockedError, StoreVersionError
from recovery.store import connections, migrations
from recovery.store.models import METADATA
from recovery.store.reader import read_scheduler
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store.any_records import WALL_MS, files, filled, job, sql
from tests.store.owner_process import killed, run

# --- damage -------------------------------------------------------------------------------------------------------


class Good:
    """A file as it should be. `used` are the positions that are not empty: flips elsewhere hardly ever matter."""

    def __init__(self, place: Path) -> None:
        self.state = filled(place)
        self.content = (place / "scheduler.db").read_bytes()
        self.used = [position for position, byte in enumerate(self.content) if byte]


@pytest.fixture(scope="module")
def good() -> Iterator[Good]:
    with tempfile.TemporaryDirectory() as place:
        yield Good(Path(place))


@given(position=st.integers(0, 2**20), bit=st.integers(0, 7))
def test_no_flipped_bit_is_ever_read_as_something_else(good: Good, position: int, bit: int) -> None:
    content = bytearray(good.content)
    content[good.used[position % len(good.used)]] ^= 1 << bit
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "scheduler.db").write_bytes(content)
        try:
            store = SchedulerStore.open(Path(place))
        except StoreError:
            return
        assert store.load() == good.state
        store.close()


@pytest.mark.parametrize("name", ["commits", "dirty", "owner"])
def test_what_a_file_says_of_itself_and_is_no_text_any_more_is_damage(tmp_path: Path, name: str) -> None:
    filled(tmp_path)
    sql(tmp_path / "scheduler.db", f"UPDATE meta SET value = CAST(value AS BLOB) WHERE name = '{name}'")

    with pytest.raises(StoreError, match=f"STORE_CORRUPT: .*the row '{name}' of table meta is no text"):
        SchedulerStore.open(tmp_path, accept_without_wal=True)


def test_a_time_that_is_no_text_any_more_is_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    sql(
        tmp_path / "scheduler.db",
        "UPDATE meta SET value = CAST('x' AS BLOB) WHERE name = 'last_write'",
        "INSERT OR IGNORE INTO meta VALUES ('last_write', x'78')",
    )
    with (
        closing(SchedulerStore.open(tmp_path)) as store,
        pytest.raises(StoreError, match=r"STORE_CORRUPT: .*no text"),
    ):
        store.away_ms()


def test_a_schema_that_is_no_text_any_more_is_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    file = tmp_path / "scheduler.db"
    file.write_bytes(file.read_bytes().replace(b"CREATE TABLE generations", b"CREAT\xc5 TABLE generations"))

    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*is not text"):
        SchedulerStore.open(tmp_path)
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*is not text"):
        read_scheduler(tmp_path)


@given(left=st.integers(0, 2**20))
@example(left=-7)
def test_a_cut_file_is_never_opened(good: Good, left: int) -> None:
    content = good.content[: left % len(good.content)]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "scheduler.db"
        file.write_bytes(content)
        with pytest.raises(StoreError, match=r"STORE_CORRUPT|STORE_NOT_OURS"):
            SchedulerStore.open(Path(place))
        assert file.read_bytes() == content


@pytest.mark.parametrize(
    "name", ["scheduler.db", "scheduler.db-wal", "scheduler.db-shm", "scheduler.db.lock"]
)
def test_a_link_is_never_followed_and_its_target_never_touched(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"somebody's")
    recovery_path = tmp_path / "recovery"
    recovery_path.mkdir()
    (recovery_path / name).symlink_to(victim)

    with pytest.raises(StoreError, match=r"STORE_NOT_OURS: .*symbolic link"):
        SchedulerStore.open(recovery_path)

    assert victim.read_bytes() == b"somebody's"


def test_a_linked_directory_of_workers_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "workers").symlink_to("elsewhere")

    with pytest.raises(StoreError, match=r"STORE_NOT_OURS: .*symbolic link"):
        WorkerStore.open(tmp_path, "worker_1")

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_another_programs_database_and_its_log_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.db"
    with closing(sqlite3.connect(file)) as theirs:
        theirs.execute("PRAGMA journal_mode=WAL")
        theirs.execute("CREATE TABLE job (mine TEXT)")
        theirs.commit()
        before = files(tmp_path)

        with pytest.raises(StoreError, match=r"STORE_NOT_OURS: .*another program"):
            SchedulerStore.open(tmp_path)

        assert files(tmp_path) == before


def test_a_newer_schema_is_refused_with_both_versions_and_its_log_is_kept(tmp_path: Path) -> None:
    killed(tmp_path)
    with closing(sqlite3.connect(tmp_path / "scheduler.db")) as later:
        later.execute("UPDATE alembic_version SET version_num='0042'")
        later.commit()
        keeper = connections.read_only(tmp_path / "scheduler.db")
    before = files(tmp_path)

    with pytest.raises(StoreVersionError, match="has schema 0042, this release knows up to 00"):
        SchedulerStore.open(tmp_path)
    # And not STORE_WAL_MISSING: the refusal deleted nothing.
    with pytest.raises(StoreVersionError):
        SchedulerStore.open(tmp_path)

    keeper.close()
    assert files(tmp_path)["scheduler.db-wal"] == before["scheduler.db-wal"]
    assert files(tmp_path)["scheduler.db"] == before["scheduler.db"]


def test_the_same_process_cannot_own_a_file_twice(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)

    with pytest.raises(StoreLockedError, match=f"pid {os.getpid()} on "):
        SchedulerStore.open(tmp_path)

    store.apply([job(2)], wall_ms=WALL_MS)
    store.close()


# --- the schema ---------------------------------------------------------------------------------------------------


def schema_of(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return sorted(" ".join(row[0].split()) for row in rows)


def test_a_fresh_file_and_a_migrated_one_have_the_same_schema_to_the_letter(tmp_path: Path) -> None:
    filled(tmp_path)
    migrated = tmp_path / "migrated.db"
    connection = connections.connect(migrated, wal=False)
    with connection.begin():
        migrations.upgrade(connection)
    connection.close()

    with (
        closing(connections.read_only(tmp_path / "scheduler.db")) as fresh,
        closing(connections.read_only(migrated)) as other,
    ):
        assert schema_of(fresh) == schema_of(other)
        assert len(schema_of(fresh)) == len(METADATA.tables)


def test_the_known_revisions_are_the_files_that_are_there() -> None:
    there = sorted(file.name[:4] for file in migrations.VERSIONS.glob("[0-9]*.py"))

    assert there == list(migrations.REVISIONS)


def test_a_file_of_an_older_release_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    filled(tmp_path)
    versions = tmp_path / "100 % new"
    shutil.copytree(migrations.VERSIONS, versions)
    known = migrations.REVISIONS
    (versions / "9999_colour.py").write_text(
        f"from alembic import op\nimport sqlalchemy as sa\nrevision, down_revision = '9999', {known[-1]!r}\n"
        "def upgrade():\n    op.add_column('meta', sa.Column('colour', sa.Text))\n"
    )
    file = tmp_path / "scheduler.db"

    connection = connections.connect(file, wal=True)
    migrations.migrate(connection, file, revisions=(*known, "9999"), versions=versions)
    connection.close()

    with closing(connections.read_only(file)) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
        assert raw.execute("SELECT name, colour FROM meta ORDER BY name").fetchall() == [
            ("commits", None),
            ("dirty", None),
            ("last_write", None),
            ("owner", None),
        ]
        assert raw.execute("SELECT count(*) FROM nodes").fetchone() == (2,)


def test_neither_a_fresh_nor_a_current_file_costs_the_import_of_alembic(tmp_path: Path) -> None:
    code = "SchedulerStore.open(path).close(); SchedulerStore.open(path).close()\n"
    code += "print([name for name in ('alembic', 'sqlalchemy.orm') if name in sys.modules])"

    assert run(code, tmp_path).stdout.strip() == "[]"


def test_a_row_changed_by_a_stranger_is_named_by_table_and_key(tmp_path: Path) -> None:
    filled(tmp_path)
    sql(tmp_path / "scheduler.db", "UPDATE checkpoints SET step_in_epoch=99 WHERE step=200")

    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*run=1, step=200, rank=0 of table checkpoints"):
        SchedulerStore.open(tmp_path)
