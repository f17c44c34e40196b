"""While a job recovers: a survivor that starts its script again is not called lost, and a new process's rank has its files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery import process_identity
from recovery.checkpoint import catalogue
from recovery.core.ids import NodeId, Rank
from recovery.core.records import (
    JOB_STOPPED,
    CheckpointState,
    JobState,
    NodeRecord,
    NodeState,
    ProcessRecord,
    Record,
    SlotRecord,
    to_record,
)
from recovery.core.scheduler.views import job_view
from recovery.report.plan import plan
from recovery.report.status import status, status_of_view
from recovery.report.stored import read_stored
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.core.test_starts_again import interrupted
from tests.scheduler.test_rebuild import save
from tests.store.any_records import ONE, WALL_MS, generation, job, node


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """It runs until its input closes."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        yield process
        process.communicate()


def written(path: Path, *records: Record) -> Path:
    store = SchedulerStore.open(path)
    store.apply([msgspec.structs.replace(job(2), worker_count=2), *records], wall_ms=WALL_MS)
    store.close()
    return path


def lost(pid: int) -> tuple[NodeRecord, ProcessRecord]:
    """Rank 0, whose connection has closed, and which process it is."""
    away = node("worker_0", rank=Rank(0), pid=pid, state=NodeState.LOST, reason="connection closed")
    identity = process_identity.of(pid)
    assert identity is not None
    which = ProcessRecord(
        node_id=away.node_id, incarnation=away.incarnation, **msgspec.structs.asdict(identity)
    )
    return away, which


def shown(path: Path) -> tuple[Any, ...]:
    found = status(read_stored(path))
    [rank], [missing] = found["ranks"], found["lost"]
    assert (rank["state"], rank["process"], rank["reason"]) == (
        missing["state"],
        missing["process"],
        missing["reason"],
    )
    return rank["state"], rank["process"], rank["reason"]


def test_a_survivor_whose_process_runs_and_has_left_its_store_starts_again(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    path = written(tmp_path, *lost(process.pid))
    own = WorkerStore.open(path, "worker_0")
    assert shown(path)[:2] == ("lost", "running"), "it holds its store: it is stopped, or cut off"
    own.close()
    assert shown(path) == (
        "starting again",
        "running",
        "its process starts its program again (connection closed)",
    )
    process.kill()
    process.wait()
    assert shown(path) == ("lost", "not running", "connection closed")


def test_a_job_without_a_process_does_not_run(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    def state() -> tuple[str, str]:
        found = status(read_stored(path))
        return found["state"], found["stored_state"]

    path = written(tmp_path, *lost(process.pid))
    assert state() == ("unheard", "running"), "its scheduler has ended, and a rank trains on"
    with closing(SchedulerStore.open(path)) as scheduler:
        assert state() == ("running", "running")
        scheduler.apply([job(2)], wall_ms=WALL_MS)
    process.kill()
    process.wait()
    with closing(WorkerStore.open(path, "worker_0")):
        pass
    assert state() == ("not running", "running")
    with closing(SchedulerStore.open(path)) as scheduler:
        stopped = msgspec.structs.replace(job(2), reason=f"{JOB_STOPPED} (the launcher at h: SIGINT)")
        scheduler.apply([stopped], wall_ms=WALL_MS)
    assert state() == ("stopped", "running")
    with closing(SchedulerStore.open(path)) as scheduler:
        scheduler.apply([msgspec.structs.replace(stopped, state=JobState.FAILED)], wall_ms=WALL_MS)
    assert state() == ("failed", "failed")


def test_a_running_scheduler_says_it_too() -> None:
    desk, _, _ = interrupted()
    view = job_view(desk.machine.state, desk.now)
    found = status_of_view(view, (), place="host:1")
    assert [row["state"] for row in found["lost"]] == ["starting again"]
    assert found["workers_by_state"]["starting again"] == 1
    for one in view["nodes"]:
        del one["starts_again"]
    earlier = status_of_view(view, (), place="host:1")
    assert [row["state"] for row in earlier["lost"]] == ["lost"]


def test_a_new_process_without_a_store_finds_what_its_rank_has_saved(tmp_path: Path) -> None:
    records: list[Record] = [generation(1), generation(2)]
    for rank in range(2):
        directory = tmp_path / "ckpt" / str(rank)
        save(directory, rank, 20, name="train")
        [held] = catalogue.list_all([(str(directory), "small")], job="train", run=1, rank=rank).held
        new, of_slot = NodeId(f"worker_{rank}.2"), f"worker_{rank}"
        records += [
            node(new, rank=Rank(rank), host="127.0.0.1"),
            SlotRecord(node_id=new, slot=of_slot),
            to_record(Rank(rank), held, CheckpointState.COMMITTED),
        ]
    path = written(tmp_path / "recovery", *records)

    found = plan(read_stored(path))

    assert (found.action, found.step) == ("resume", 20)
    assert [(file.verified, file.why_not) for file in found.files] == [(True, ""), (True, "")]
    assert all(record.run == ONE for record in read_stored(path).checkpoints)
