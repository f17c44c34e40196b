"""A file that has lost acknowledged writes says so instead of passing for an older one."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from recovery.errors import StoreError
from recovery.store import connections
from recovery.store.models import META
from recovery.store.reader import read_scheduler
from recovery.store.repository import SchedulerStore
from tests.store import any_records


def killed_after(place: Path, writes: int) -> None:
    """Leave what an owner leaves that wrote so many jobs and was killed."""
    child = os.fork()
    if child == 0:
        try:
            store = SchedulerStore.open(place)
            for number in range(1, writes + 1):
                store.apply([any_records.job(number)], wall_ms=1)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def spoil_last_frame(place: Path) -> None:
    """Flip one bit in the last page of the -wal."""
    wal = place / "scheduler.db-wal"
    content = bytearray(wal.read_bytes())
    content[-1] ^= 1
    wal.write_bytes(content)


def test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once(tmp_path: Path) -> None:
    killed_after(tmp_path, 3)
    spoil_last_frame(tmp_path)
    (tmp_path / "scheduler.db-shm").unlink()

    with pytest.raises(StoreError, match=r"STORE_ROWS_MISSING: .*holds 2 of 3 acknowledged writes"):
        SchedulerStore.open(tmp_path)
    with pytest.raises(StoreError, match="STORE_ROWS_MISSING"):
        read_scheduler(tmp_path)

    store = SchedulerStore.open(tmp_path, accept_without_wal=True)
    assert store.load().job == any_records.job(2)
    store.apply([any_records.job(9)], wall_ms=1)
    store.close()
    assert read_scheduler(tmp_path).job == any_records.job(9)
    SchedulerStore.open(tmp_path).close()


def test_an_older_copy_in_its_place_is_noticed(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([any_records.job(1)], wall_ms=1)
    store.close()
    shutil.copy(tmp_path / "scheduler.db", tmp_path / "backup")
    killed_after(tmp_path, 2)
    SchedulerStore.open(tmp_path).close()
    shutil.copy(tmp_path / "backup", tmp_path / "scheduler.db")
    with pytest.raises(StoreError, match=r"STORE_ROWS_MISSING: .*holds 1 of 3"):
        SchedulerStore.open(tmp_path)


def test_the_note_of_another_file_does_not_count(tmp_path: Path) -> None:
    killed_after(tmp_path, 3)
    for name in ("scheduler.db", "scheduler.db-wal", "scheduler.db-shm"):
        (tmp_path / name).unlink()
    SchedulerStore.open(tmp_path).close()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"ab 7 00000000\n", b"\xff\xfe"])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    killed_after(tmp_path, 3)
    (tmp_path / "scheduler.db.commits").write_bytes(content)
    store = SchedulerStore.open(tmp_path)
    assert store.load().job == any_records.job(3)
    store.close()


def test_a_note_that_cannot_be_written_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "scheduler.db.commits").mkdir()
    store = SchedulerStore.open(tmp_path)
    store.apply([any_records.job(1)], wall_ms=1)
    assert store.load().job == any_records.job(1)
    store.close()


def test_a_file_that_does_not_say_how_many_writes_it_holds_is_damaged(tmp_path: Path) -> None:
    SchedulerStore.open(tmp_path).close()
    connection = connections.connect(tmp_path / "scheduler.db", wal=False)
    with connection.begin():
        connection.execute(META.update().where(META.c.name == "commits").values(value="many"))
    connection.close()
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*does not say how many writes it holds"):
        SchedulerStore.open(tmp_path)


def test_a_file_of_before_the_count_is_counted_from_now_on(tmp_path: Path) -> None:
    SchedulerStore.open(tmp_path).close()
    connection = connections.connect(tmp_path / "scheduler.db", wal=False)
    with connection.begin():
        connection.execute(META.delete().where(META.c.name == "commits"))
    connection.close()
    killed_after(tmp_path, 2)
    spoil_last_frame(tmp_path)
    (tmp_path / "scheduler.db-shm").unlink()
    with pytest.raises(StoreError, match=r"STORE_ROWS_MISSING: .*holds 1 of 2"):
        SchedulerStore.open(tmp_path)
