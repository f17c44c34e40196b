"""A rank's files are found by what the scheduler knows of them, and by what the lost node's own store says, where it can be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.adopt import adopt_folder
from recovery.checkpoint.contribution import Layout
from recovery.core.ids import Generation, NodeId, Rank, RunId
from recovery.core.messages import HeldCheckpoint, Offer
from recovery.core.records import DirectoryRecord
from recovery.store.paths import worker_path
from recovery.store.reader import read_worker
from recovery.worker.checkpoint_search import Found
from recovery.worker.local_store import LocalStore
from tests.scheduler.test_rebuild import JOB, generation, job, node, save, worker_store
from tests.store.test_own_file import others_look
from tests.transport.wire import run

RANK = Rank(1)


def offer(*paths: Path) -> Offer:
    """Of rank 1 of worker_1, whose files are known to lie there."""
    held = tuple(
        HeldCheckpoint(
            run=RunId(1),
            generation=Generation(2),
            step=10,
            epoch=1,
            step_in_epoch=10,
            path=str(path),
            digest="d",
            file_bytes=5,
        )
        for path in paths
    )
    return Offer(run=RunId(1), rank=RANK, replaced=NodeId("worker_1"), committed_step=10, held=held)


def lost_worker(path: Path, *directories: DirectoryRecord) -> None:
    """The own store of worker_1, which has rank 1."""
    worker_store(path, 1, job(), node(1), generation(1, 0), *directories)


def standby(path: Path | None) -> LocalStore:
    return LocalStore(path, NodeId("standby_0"), accept_without_wal=False)


def steps(found: Found) -> list[int]:
    return [one.step for one in found.held]


def test_files_are_looked_for_where_the_offer_says_whatever_is_newer_there(tmp_path: Path) -> None:
    for step in (10, 20):
        save(tmp_path / "theirs", 1, step)
    save(tmp_path / "theirs", 0, 30)
    found = standby(tmp_path / "recovery").find_offered(JOB, offer(tmp_path / "theirs" / "small-1_10.ckpt"))
    assert steps(found) == [20, 10]
    assert [one.step for one in found.passed_over] == [30], "another rank's"


def test_folders_that_a_framework_wrote_are_looked_for_too(tmp_path: Path) -> None:
    save(tmp_path / "theirs", 1, 10)
    folder = tmp_path / "theirs" / "step_20"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"w")
    adopt_folder(
        folder,
        lambda files: msgspec.structs.replace(
            manifests.read_manifest(tmp_path / "theirs" / "small-1_10.json"),
            files=files,
            layout=Layout.FOREIGN,
            step=20,
        ),
        lambda: True,
        rank=1,
        shared_by=1,
    )
    known = offer(folder)
    of_folder = msgspec.structs.replace(known.held[0], path=f"{folder}/")

    found = standby(tmp_path / "recovery").find_offered(
        JOB, msgspec.structs.replace(known, held=(of_folder,))
    )
    assert [one.path for one in found.held] == [f"{folder}/"]
    assert not found.passed_over


def test_files_are_looked_for_where_the_lost_nodes_own_store_says(tmp_path: Path) -> None:
    save(tmp_path / "one", 1, 10)
    save(tmp_path / "two", 1, 20)
    lost_worker(
        tmp_path / "recovery",
        DirectoryRecord(path=str(tmp_path / "two"), prefix="small", run=RunId(1)),
        DirectoryRecord(path=str(tmp_path / "one"), prefix="small", run=RunId(7)),
    )
    assert steps(standby(tmp_path / "recovery").find_offered(JOB, offer())) == [20]


def test_where_nothing_can_be_read_nothing_is_held(tmp_path: Path) -> None:
    (tmp_path / "recovery" / "workers").mkdir(parents=True)
    (tmp_path / "recovery" / "workers" / "worker_1.db").write_bytes(b"this is no database")
    nowhere = offer(tmp_path / "of another host" / "small-1_10.ckpt", tmp_path / "no checkpoint's name")
    assert standby(tmp_path / "recovery").find_offered(JOB, nowhere) == Found()
    assert standby(None).find_offered(JOB, nowhere) == Found()


def test_who_takes_the_rank_over_keeps_where_its_files_lie(tmp_path: Path) -> None:
    recovery = tmp_path / "recovery"
    save(tmp_path / "theirs", 1, 10)

    async def main() -> None:
        local_store = standby(recovery)
        local_store.attach(asyncio.get_running_loop(), lambda persist: None, lambda error: None)
        local_store.open()
        # What came before the store was open is written by the loop.
        await asyncio.sleep(0)
        local_store.find_offered(JOB, offer(tmp_path / "theirs" / "small-1_10.ckpt"))
        assert steps(local_store.find_checkpoints(JOB, RunId(1), RANK, None)) == []

        local_store.keep_directories(RANK)
        assert steps(local_store.find_checkpoints(JOB, RunId(1), RANK, None)) == [10]
        local_store.keep_directories(RANK)
        assert local_store._writer is not None
        assert local_store._store is not None
        # It has looked into its own store too, which is open: by the locks that it keeps, others see that.
        others_look(worker_path(recovery, "standby_0"))
        local_store._store.check()
        assert local_store._writer.close(60.0)
        local_store._store.close()

    run(main())
    assert [one.path for one in read_worker(recovery, "standby_0").directories] == [str(tmp_path / "theirs")]
    # Its next process finds them by its own store.
    assert steps(standby(recovery).find_offered(JOB, offer())) == [10]
