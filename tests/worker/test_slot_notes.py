"""What a fresh id finds in the stores of the earlier ids of its place, when the scheduler's store is lost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from recovery.core.effects import Persist
from recovery.core.ids import NodeId, Rank, RunId
from recovery.core.messages import JobHistory
from recovery.core.records import DirectoryRecord, NodeRecord
from recovery.store import reader
from recovery.store.contents import WorkerRecords
from recovery.store.reader import read_worker
from recovery.store.repository import WorkerStore
from recovery.worker.checkpoint_search import Found
from recovery.worker.local_store import LocalStore
from recovery.worker.slot_history import Notes, SlotNotes
from tests.scheduler.test_rebuild import JOB, generation, job, node, save
from tests.transport.wire import run

NEW = "the-new-job"


def noted(path: Path, name: str, newest: int, directory: Path) -> None:
    """The store of an id that held rank 0."""
    where = DirectoryRecord(path=str(directory), prefix="small", run=RunId(1))
    held: NodeRecord = msgspec.structs.replace(node(0), node_id=NodeId(name))
    store = WorkerStore.open(path, name)
    store.apply((job(generation=newest), held, generation(1, 0), generation(newest, 10), where), wall_ms=1)
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """worker_0 has saved step 10, worker_0.2 has gone on from it and saved step 20 elsewhere; worker_1 is another place."""
    path = tmp_path / "recovery"
    for name, newest, step in (("worker_0", 2, 10), ("worker_0.2", 3, 20), ("worker_1", 9, 90)):
        save(tmp_path / name, 0, step)
        noted(path, name, newest, tmp_path / name)
    return path


def find(
    path: Path, node_id: str, replaces: str, *, asked: str = NEW, past: JobHistory | None = None
) -> Found:
    """What a process of that id finds, and finds again."""

    async def main() -> Found:
        local_store = LocalStore(path, NodeId(node_id), accept_without_wal=False, replaces=replaces)
        written: list[Persist] = []
        local_store.attach(asyncio.get_running_loop(), written.append, lambda error: None)
        found = local_store.find_checkpoints(asked, RunId(1), None, past)
        again = local_store.find_checkpoints(JOB, RunId(1), Rank(0), None)
        if found.past is not None:
            assert {one.step for one in again.held} >= {one.step for one in found.past.held}, (
                "it looks there from now on"
            )
        local_store.close()
        return found

    return run(main())


@pytest.mark.parametrize(
    ("node_id", "replaces"),
    [("worker_0.3", "worker_0.2"), ("worker_0", "")],
    ids=["a fresh id", "its launcher was started again"],
)
def test_place_is_known_by_the_newest_of_its_stores(path: Path, node_id: str, replaces: str) -> None:
    past = find(path, node_id, replaces).past
    assert past is not None
    assert (past.job, past.rank, past.generation, past.noted_by) == (JOB, 0, 3, "worker_0.2")
    assert [one.step for one in past.held] == [20, 10], "the files of every id of the place"
    assert [one.generation for one in past.began] == [1, 2, 3]


def test_id_that_is_nobodys_successor_reads_no_other_store(path: Path) -> None:
    assert find(path, "worker_0.3", "").past is None
    assert find(path, "worker_2", "").past is None


def test_scheduler_that_knows_the_job_needs_no_past(path: Path) -> None:
    assert find(path, "worker_0.3", "worker_0.2", asked=JOB).past is None


def test_store_that_cannot_be_read_is_named_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path / "workers/worker_0.2.db").write_bytes(b"this is no database, " * 500)
    with caplog.at_level(logging.WARNING, "recovery.worker"):
        past = find(path, "worker_0.3", "worker_0.2").past
    assert past is not None
    assert past.generation == 2
    assert len([one for one in caplog.messages if "event=place_not_read what worker_0.2" in one]) == 1


def test_one_id_that_knows_the_job_spares_reading_the_older_ones(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noting(recovery_path: Path, node_id: str, **options: bool) -> WorkerRecords:
        read.append(node_id)
        return read_worker(recovery_path, node_id, **options)

    monkeypatch.setattr(reader, "read_worker", noting)
    assert SlotNotes(NodeId("worker_0.10"), "worker_0.2").read(path, JOB) == Notes({}, ())
    assert read == ["worker_0.2"]


def test_the_store_read_last_is_read_again_once_something_was_written_to_it(path: Path) -> None:
    notes = SlotNotes(NodeId("worker_0.3"), "worker_0.2")
    first = notes.records_of(path, NodeId("worker_0.2"))
    assert notes.records_of(path, NodeId("worker_0.2")) is first
    elsewhere = DirectoryRecord(path="/elsewhere", prefix="small", run=RunId(1))
    with closing(WorkerStore.open(path, "worker_0.2")) as store:
        store.apply((elsewhere,), wall_ms=2)
        assert elsewhere in notes.records_of(path, NodeId("worker_0.2")).directories, (
            "its owner has it open still"
        )
    assert elsewhere in notes.records_of(path, NodeId("worker_0.2")).directories
    assert notes.records_of(path, NodeId("worker_0")).directories == read_worker(path, "worker_0").directories
