"""An owner whose file was taken away says so and writes no more; another file under its name is left alone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.core.rules import Rules
from recovery.errors import StoreError
from recovery.store import file_identity
from recovery.store.reader import read_scheduler
from recovery.store.repository import SchedulerStore
from recovery.store.writer import LOOK_S, Writer
from tests.store import samples


def _delete(path: Path) -> None:
    (path / "scheduler.db").unlink()
    (path / "scheduler.db-wal").unlink()


def _delete_the_log(path: Path) -> None:
    (path / "scheduler.db-wal").unlink()


def _remove_the_path(path: Path) -> None:
    shutil.rmtree(path)


def _swap(path: Path) -> None:
    """Another job's store takes the place of this one's."""
    path.rename(path.with_name("moved"))
    other = SchedulerStore.open(path)
    other.apply([samples.job(7)], wall_ms=1)
    other.close()


LOSSES = pytest.mark.parametrize(
    "lose", [_delete, _delete_the_log, _remove_the_path, _swap], ids=lambda lose: lose.__name__
)


@LOSSES
def test_an_owner_whose_file_was_taken_away_writes_no_more(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "job"
    store = SchedulerStore.open(path)
    store.apply([samples.job(1)], wall_ms=1)

    lose(path)
    before = _files(path)

    with pytest.raises(StoreError, match=r"STORE_GONE: .*scheduler\.db"):
        store.apply([samples.job(2)], wall_ms=1)
    with pytest.raises(StoreError, match="STORE_GONE"):
        store.check()
    store.close()
    # A closed store has nothing to look at.
    store.check()
    assert _files(path) == before, "it wrote into a directory that is no longer its own"


def _files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.rglob("*.db*") if file.is_file()}


def test_a_file_that_goes_while_a_batch_is_written_takes_the_batch_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SchedulerStore.open(tmp_path / "job")
    identity = store._database.file_identity
    look, looks = identity.check, [0]

    def taken_away_before_the_second_look() -> None:
        looks[0] += 1
        if looks[0] == 2:
            _remove_the_path(tmp_path / "job")
        look()

    monkeypatch.setattr(identity, "check", taken_away_before_the_second_look)

    with pytest.raises(StoreError, match="STORE_GONE"):
        store.apply([samples.job(2)], wall_ms=1)
    monkeypatch.undo()
    store.close()
    assert not (tmp_path / "job").exists()


def test_a_file_system_that_is_gone_is_a_store_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SchedulerStore.open(tmp_path / "job")

    def stale(file: Path) -> tuple[int, int]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(file_identity, "_identity", stale)
    with pytest.raises(StoreError, match=r"STORE_GONE: .*cannot be looked at \(Stale file handle\)"):
        store.check()
    store.close()


def test_a_writer_without_work_notices_within_a_heartbeat(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path / "job")
    failures: list[StoreError] = []
    reported = threading.Event()

    def failed(error: StoreError) -> None:
        failures.append(error)
        reported.set()

    released: list[object] = []
    writer = Writer(store, on_durable=released.append, on_failure=failed, wall_ms=lambda: 1)
    _delete(tmp_path / "job")

    assert Rules(worker_count=1).heartbeat_ms_min >= 1_000 * LOOK_S
    assert reported.wait(60)
    writer.submit([samples.job(2)], "never")
    assert not writer.close(60.0)
    store.close()
    assert [error.code for error in failures] == ["STORE_GONE"]
    assert released == []


def test_an_owner_that_folds_and_writes_for_long_keeps_its_files(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path / "job")
    for generation in range(300):
        store.apply([samples.job(generation), *(samples.event() for _ in range(20))], wall_ms=1)
    store.check()
    store.close()
    assert read_scheduler(tmp_path / "job").job == samples.job(299)
