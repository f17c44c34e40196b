"""What a worker reports stands in its own store first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recovery.core.effects import Persist, Report
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RequestId, RunId
from recovery.core.messages import CheckpointReport, HeldCheckpoint
from recovery.core.records import StepRecord
from recovery.errors import RecoveryError
from recovery.store import connections
from recovery.store import writer as writer_module
from recovery.store.paths import worker_path
from recovery.store.reader import read_worker
from recovery.store.repository import WorkerStore
from recovery.worker import local_store as local_store_module
from recovery.worker.local_store import LocalStore
from tests.store import samples
from tests.store.test_store_waits import locked
from tests.transport.wire import run, until


def _report() -> Report:
    held = HeldCheckpoint(
        run=RunId(1),
        generation=Generation(1),
        step=10,
        epoch=1,
        step_in_epoch=10,
        path="/checkpoints/a-1_10.ckpt",
        digest="ab" * 32,
        file_bytes=100,
    )
    return Report(CheckpointReport(request_id=RequestId("r"), checkpoint=held))


def test_a_report_is_released_when_its_row_can_be_read_and_not_before(tmp_path: Path) -> None:
    rows_at_release: list[int] = []
    failures: list[RecoveryError] = []

    def release(persist: Persist) -> None:
        if persist.then:
            rows_at_release.append(len(read_worker(tmp_path, "w0").checkpoints))

    async def main() -> None:
        local_store = LocalStore(tmp_path, NodeId("w0"), accept_without_wal=False)
        local_store.attach(asyncio.get_running_loop(), release, failures.append)
        local_store.open()
        local_store.submit(Persist((samples.checkpoint(),), (_report(),)))
        assert rows_at_release == [], "it was released before anybody could have written it"
        await until(lambda: rows_at_release, "the release")
        assert local_store._writer is not None
        assert local_store._store is not None
        assert local_store._writer.close(60.0)
        local_store._store.close()

    run(main())

    assert rows_at_release == [1]
    assert failures == []


def test_a_store_that_is_behind_costs_progress_notes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[Persist] = []
    kept, beat = Persist((samples.checkpoint(),), (_report(),)), Persist((_progress(),))

    async def main() -> None:
        local_store = LocalStore(tmp_path, NodeId("w0"), accept_without_wal=False)
        local_store.attach(asyncio.get_running_loop(), released.append, lambda error: None)
        local_store.open()
        assert local_store._writer is not None
        assert local_store._store is not None
        with monkeypatch.context() as patched:
            patched.setattr(writer_module, "QUEUE_MAX", 0)
            local_store.submit(kept)
            for _ in range(3):
                local_store.submit(beat)
            assert released == [beat, beat, beat], "skipped: nobody waits for them"
        local_store.submit(beat)
        await until(lambda: kept in released, "the release of what was reported")
        await until(lambda: released.count(beat) == 4, "the release of the newest note")
        assert local_store._writer.close(60.0)
        local_store._store.close()

    run(main())
    assert caplog.text.count("event=progress_not_written") == 1
    assert len(read_worker(tmp_path, "w0").checkpoints) == 1


def test_a_store_that_another_program_locks_is_opened_once_it_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    WorkerStore.open(tmp_path, "w0").close()
    monkeypatch.setattr(connections, "BUSY_S", 0.05)
    monkeypatch.setattr(local_store_module, "_RETRY_S", 0.05)
    failures: list[RecoveryError] = []

    async def main() -> None:
        local_store = LocalStore(tmp_path, NodeId("w0"), accept_without_wal=False)
        local_store.attach(asyncio.get_running_loop(), lambda persist: None, failures.append)
        with locked(worker_path(tmp_path, "w0")):
            local_store.open()
            assert "event=store_busy STORE_BUSY" in caplog.text
            local_store.submit(Persist((samples.checkpoint(),)))
        await until(lambda: local_store._store is not None and not local_store._waiting, "the store")
        assert local_store._writer is not None
        assert local_store._writer.close(60.0)
        assert local_store._store is not None
        local_store._store.close()

    run(main())
    assert failures == []
    assert len(read_worker(tmp_path, "w0").checkpoints) == 1


def _progress() -> StepRecord:
    return StepRecord(
        node_id=NodeId("w0"),
        rank=Rank(0),
        run=RunId(1),
        generation=Generation(1),
        incarnation=Incarnation(1),
        step=7,
        epoch=1,
        step_in_epoch=7,
    )
