"""What a worker's own store says of its job: rows that came before it was open, another job's past, a store of a newer release."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from recovery.core.effects import Persist
from recovery.core.ids import NodeId, RunId
from recovery.core.records import DirectoryRecord, StepRecord
from recovery.errors import RecoveryError, StoreError, StoreVersionError
from recovery.store.reader import read_worker
from recovery.store.repository import WorkerStore
from recovery.worker import local_store
from recovery.worker.checkpoint_search import Found
from recovery.worker.local_store import LocalStore
from tests.core.pasts import past
from tests.scheduler.test_rebuild import JOB, generation, job, node, save, worker_store
from tests.store import samples
from tests.transport.wire import run, until


def _local_store(path: Path, failures: list[RecoveryError]) -> LocalStore:
    local_store = LocalStore(path, NodeId("worker_0"), accept_without_wal=False)
    local_store.attach(asyncio.get_running_loop(), lambda persist: None, failures.append)
    return local_store


def _close(local_store: LocalStore) -> None:
    assert local_store._writer is not None
    assert local_store._store is not None
    assert local_store._writer.close(60.0)
    local_store._store.close()


def _directory(tmp_path: Path) -> DirectoryRecord:
    return DirectoryRecord(path=str(tmp_path / "ckpt"), prefix="small", run=RunId(1))


def test_what_came_before_the_store_was_open_is_written_once_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        local_store = _local_store(tmp_path, [])
        # The incarnation before is only stopped: it holds the lock.
        other = WorkerStore.open(tmp_path, "worker_0")
        local_store.open()
        local_store.submit(Persist((job(), node(0), generation(1, 0), samples.checkpoint(10))))
        local_store.submit(Persist((job(generation=3), generation(3, 10))))
        local_store.add_directory(tmp_path / "ckpt", "small", RunId(1))
        other.close()
        await until(lambda: local_store._writer is not None, "the store")
        local_store.submit(Persist((job(generation=4),)))
        await until(lambda: not local_store._waiting and _is_written(tmp_path), "the rows")
        _close(local_store)

    run(main())

    state = read_worker(tmp_path, "worker_0")
    assert state.job == job(generation=4), "an older row overtook a newer one"
    assert state.node == node(0)
    assert [one.generation for one in state.generations] == [1, 3]
    assert [one.step for one in state.checkpoints] == [10]
    assert [one.prefix for one in state.directories] == ["small"]


def _is_written(path: Path) -> bool:
    state = read_worker(path, "worker_0")
    return len(state.generations) == 2 and state.job == job(generation=4)


def test_a_past_in_another_job_is_found_with_what_is_held_of_it(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 0, 10)
    worker_store(
        tmp_path,
        0,
        job(),
        node(0),
        generation(1, 0),
        generation(2, 5),
        _directory(tmp_path),
        samples.checkpoint(90),
    )

    async def main() -> None:
        local_store = _local_store(tmp_path, [])
        found = local_store.find_checkpoints("another", RunId(1), None, None)
        assert found.held == ()
        assert found.past is not None
        assert (found.past.job, found.past.rank, found.past.saved_step) == (JOB, 0, 90)
        assert [one.step for one in found.past.held] == [10]
        assert [one.generation for one in found.past.began] == [1, 2]

        own = local_store.find_checkpoints(JOB, RunId(1), None, None)
        assert own.past is None
        assert [one.step for one in own.held] == [10]

        remembered = past(0, job=JOB, generation=7, began=())
        known = local_store.find_checkpoints("another", RunId(1), None, remembered).past
        assert known is not None
        assert (known.rank, known.generation, len(known.began), known.saved_step) == (0, 7, 2, 90)
        assert [one.step for one in known.held] == [10]
        # Until what was posted to the loop is done.
        await asyncio.to_thread(lambda: None)
        _close(local_store)

    run(main())


def test_a_store_of_a_newer_release_does_not_count_as_empty(tmp_path: Path) -> None:
    import sqlite3

    worker_store(tmp_path, 0, job(), node(0))
    with closing(sqlite3.connect(tmp_path / "workers/worker_0.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    failures: list[RecoveryError] = []

    async def main() -> None:
        local_store = _local_store(tmp_path, failures)
        local_store.add_directory(tmp_path / "ckpt", "small", RunId(1))
        with pytest.raises(StoreVersionError, match="9999"):
            local_store.find_checkpoints(JOB, RunId(1), None, None)

    run(main())


def test_a_store_that_was_taken_away_is_reported_and_written_no_more(tmp_path: Path) -> None:
    failures: list[RecoveryError] = []

    async def main() -> None:
        local_store = _local_store(tmp_path, failures)
        local_store.open()
        for file in (tmp_path / "workers").glob("worker_0.db*"):
            file.unlink()
        await until(lambda: failures, "the report of it")
        local_store.submit(Persist((job(),)))
        assert local_store._waiting is None
        store = local_store._store
        assert store is not None
        store.close()

    run(main())

    assert [type(failure) for failure in failures] == [StoreError]
    assert not (tmp_path / "workers/worker_0.db").exists()


def test_without_a_path_nothing_is_kept_or_found() -> None:
    async def main() -> None:
        local_store = LocalStore(None, NodeId("worker_0"), accept_without_wal=False)
        released: list[Persist] = []
        local_store.attach(asyncio.get_running_loop(), released.append, lambda error: None)
        local_store.submit(Persist((job(),)))
        assert len(released) == 1
        assert not local_store._waiting
        assert local_store.find_checkpoints(JOB, RunId(1), None, None).held == ()

    run(main())


def test_who_takes_over_a_lost_rank_makes_no_store_while_all_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_RETRY_S", 60.0)
    (tmp_path / "workers").mkdir(mode=0o700)

    async def main() -> None:
        store = LocalStore(tmp_path, NodeId("worker_0.2"), accept_without_wal=False, replaces="worker_0")
        store.attach(asyncio.get_running_loop(), lambda persist: None, lambda error: None)
        assert store.find_checkpoints(JOB, RunId(1), None, None) == Found()
        assert list((tmp_path / "workers").iterdir()) == []
        store.submit(Persist((job(), node(0))))
        await asyncio.sleep(0.05)
        assert list((tmp_path / "workers").iterdir()) == []
        stepped = next(record for record in samples.every_kind() if isinstance(record, StepRecord))
        store.submit(Persist((stepped,)))
        await until(lambda: store._writer is not None, "the store")
        await until(lambda: not store._waiting, "what came before")
        _close(store)

    run(main())

    assert read_worker(tmp_path, "worker_0.2").job == job()
