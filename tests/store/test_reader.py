"""What one can ask of a store from outside: parts of the event log, who holds it, whether all of it is whole."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from sqlalchemy.util import LRUCache

from recovery.core.copy_records import CopyState
from recovery.core.failed_work import FROM_ANOTHER, FailedWork
from recovery.core.ids import NodeId, RunId
from recovery.core.records import CheckpointState, EventKind, EventRecord
from recovery.errors import RecoveryPathError, StoreError
from recovery.store import snapshot
from recovery.store.lock import owner_of
from recovery.store.paths import scheduler_path
from recovery.store.reader import (
    check_scheduler,
    check_worker,
    compile_statements,
    read_checkpoints,
    read_events,
    read_failed_work,
    read_job,
    read_not_ready,
    read_notices,
    read_scheduler,
    read_worker,
    stored_workers,
)
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples
from tests.store.any_records import copy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of five events, written 10 ms apart; every second is about worker_1."""
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job()], wall_ms=1)
    for number in range(1, 6):
        event = msgspec.structs.replace(
            samples.event(f"line {number}"), node_id=NodeId(f"worker_{number % 2}")
        )
        store.apply([event], wall_ms=number * 10)
    store.close()
    return tmp_path


def lines(path: Path, **asked: object) -> list[str]:
    return [stored.event.reason for stored in read_events(path, **asked)]  # type: ignore[arg-type]  # a test's own


def test_the_event_log_can_be_asked_for_in_parts(path: Path) -> None:
    assert lines(path) == [f"line {number}" for number in range(1, 6)]
    assert lines(path, limit=2) == ["line 1", "line 2"]
    assert lines(path, limit=2, newest=True) == ["line 4", "line 5"]
    assert lines(path, after=3) == ["line 4", "line 5"]
    assert lines(path, node_id="worker_1") == ["line 1", "line 3", "line 5"]
    assert lines(path, node_id="worker_1", limit=1, newest=True) == ["line 5"]
    assert lines(path, since_ms=30) == ["line 3", "line 4", "line 5"]
    assert lines(path, node_id="nobody") == []


def test_an_owner_is_seen_by_the_kernels_own_list(
    path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    database = scheduler_path(path)
    assert owner_of(database) is None
    store = SchedulerStore.open(path)
    found = owner_of(database)
    assert found is not None
    assert found.pid == os.getpid()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    SchedulerStore.open(elsewhere).close()
    assert owner_of(scheduler_path(elsewhere)) is None, "somebody else's lock is not its"
    store.close()
    assert owner_of(database) is None
    assert owner_of(path / "none.db") is None


def test_a_changed_store_is_noticed_and_a_whole_one_is_not(path: Path) -> None:
    check_scheduler(path)
    with closing(sqlite3.connect(scheduler_path(path))) as connection:
        connection.execute("UPDATE events SET reason = 'another' WHERE sequence = 2")
        connection.commit()
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*sequence=2 of table events"):
        check_scheduler(path)


def test_damage_that_only_sqlite_sees_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(scheduler_path(path))) as connection:
        connection.execute("CREATE INDEX by_kind ON events (kind)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = 'CREATE INDEX by_kind ON events (reason)' WHERE name = 'by_kind'"
        )
        connection.commit()
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*by_kind"):
        check_scheduler(path)


def test_workers_files_are_listed_and_checked(path: Path) -> None:
    assert stored_workers(path) == ()
    for name in ("worker_1", "worker_0"):
        WorkerStore.open(path, name).close()
    assert stored_workers(path) == ("worker_0", "worker_1")
    check_worker(path, "worker_1")
    (path / "workers" / "worker_1.db").write_bytes(b"")
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*it is empty"):
        check_worker(path, "worker_1")


def test_a_directory_that_cannot_be_listed_is_named(path: Path) -> None:
    assert stored_workers(path) == ()
    (path / "workers").write_text("no directory")
    with pytest.raises(RecoveryPathError, match="Not a directory"):
        stored_workers(path)


def test_what_is_retired_is_history_and_checked_as_such(path: Path) -> None:
    retired = msgspec.structs.replace(samples.checkpoint(step=5), state=CheckpointState.RETIRED)
    store = SchedulerStore.open(path)
    store.apply([retired, samples.checkpoint(step=10)], wall_ms=1)
    store.close()
    assert read_scheduler(path).checkpoints == (samples.checkpoint(step=10),)
    assert read_checkpoints(path) == (retired, samples.checkpoint(step=10))
    check_scheduler(path)
    with closing(sqlite3.connect(scheduler_path(path))) as connection:
        connection.execute("UPDATE checkpoints SET path = 'elsewhere' WHERE step = 5")
        connection.commit()
    store = SchedulerStore.open(path)
    assert store.load().checkpoints == (samples.checkpoint(step=10),)
    store.close()
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*step=5"):
        check_scheduler(path)


def test_which_job_it_is_can_be_asked_alone(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert read_job(path) == read_scheduler(path).job == samples.job()
    fresh = tmp_path_factory.mktemp("fresh")
    SchedulerStore.open(fresh).close()
    assert read_job(fresh) is None, "no job has begun there"
    with pytest.raises(RecoveryPathError):
        read_job(fresh / "none")


def test_statements_that_were_compiled_ahead_are_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WorkerStore.open(tmp_path, "worker_0").close()
    monkeypatch.setattr(snapshot._ENGINE, "_compiled_cache", LRUCache(500))
    compile_statements()
    compiled = len(snapshot._ENGINE._compiled_cache or ())
    read_worker(tmp_path, "worker_0")
    # One is of the file's own: whether it was closed cleanly.
    assert compiled > 5
    assert len(snapshot._ENGINE._compiled_cache or ()) <= compiled + 1


def test_who_has_not_said_that_it_is_ready_since_its_newest_admission(tmp_path: Path) -> None:
    def of(node_id: str, kind: EventKind) -> EventRecord:
        return msgspec.structs.replace(samples.event(), node_id=NodeId(node_id), kind=kind)

    admitted, ready = EventKind.NODE_ADMITTED, EventKind.NODE_READY
    store = SchedulerStore.open(tmp_path)
    happened = (
        ("a", admitted),
        ("b", admitted),
        ("b", ready),
        ("c", admitted),
        ("c", ready),
        ("c", admitted),
    )
    store.apply([samples.job(), *(of(*one) for one in happened)], wall_ms=1)
    store.close()
    assert read_not_ready(tmp_path) == {"a", "c"}


def test_copies_that_are_gone_are_history(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    held, damaged = copy(10), copy(20, CopyState.DAMAGED)
    store.apply([held, damaged, copy(30, CopyState.GONE), copy(40)], wall_ms=1)
    store.apply([copy(40, CopyState.GONE)], wall_ms=2)
    assert store.load().copies == (held, damaged)
    store.close()
    check_scheduler(tmp_path)


def test_failed_saves_copies_and_uploads_are_counted_by_run_and_the_last_says_why(path: Path) -> None:
    failed = EventRecord(kind=EventKind.CHECKPOINT_NOT_SAVED, node_id=NodeId("a"), run=RunId(2), step=7)
    upload = msgspec.structs.replace(failed, kind=EventKind.UPLOAD_FAILED, step=8, reason="no route to it")
    copy = msgspec.structs.replace(failed, kind=EventKind.COPY_FAILED, details=f"rank 1{FROM_ANOTHER}")
    with closing(SchedulerStore.open(path)) as store:
        of_other = msgspec.structs.replace(failed, run=RunId(1), reason="disk full")
        store.apply([failed, failed, of_other, upload, copy], wall_ms=99)

    assert [read_failed_work(path, RunId(run)) for run in (1, 2, 3)] == [
        FailedWork(not_saved=1, last_failed="a, step 7: disk full"),
        FailedWork(not_saved=2, not_uploaded=1, last_failed="a, step 8: no route to it"),
        FailedWork(),
    ]


def test_notices_are_counted_by_run_when_they_are_over(path: Path) -> None:
    ended = EventRecord(kind=EventKind.DRAIN_ENDED, run=RunId(2), step=7, reason="handed over at step 7")
    begun = msgspec.structs.replace(ended, kind=EventKind.DRAIN_BEGUN)
    with closing(SchedulerStore.open(path)) as store:
        store.apply([begun, ended, begun, ended, msgspec.structs.replace(ended, run=RunId(1))], wall_ms=99)

    assert [read_notices(path, RunId(run)) for run in (1, 2, 3)] == [1, 2, 0]
