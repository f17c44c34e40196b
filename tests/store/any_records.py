"""Records for the store's tests: one of each class by hand, and strategies that make any."""

from __future__ import annotations

import sqlite3
import typing
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from recovery.core.copy_records import CopyRecord, CopyState
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import Role
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    CheckpointState,
    DirectoryRecord,
    EventKind,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    JobState,
    LiveSourceRecord,
    NodeRecord,
    NodeState,
    ProcessRecord,
    Record,
    RunRecord,
    SlotRecord,
    StepRecord,
    TrainingEndRecord,
)
from recovery.store.contents import SchedulerRecords
from recovery.store.repository import SchedulerStore

WALL_MS = 1_763_640_131_000
ONE = RunId(1)


def job(generation: int = 1) -> JobRecord:
    return JobRecord(
        job="train",
        worker_count=4,
        server_count=0,
        run=ONE,
        state=JobState.RUNNING,
        generation=Generation(generation),
        scheduler_incarnation=Incarnation(1),
    )


def node(node_id: str = "worker_3", **changes: Any) -> NodeRecord:
    record = NodeRecord(
        node_id=NodeId(node_id),
        role=Role.WORKER,
        rank=Rank(3),
        incarnation=Incarnation(1),
        state=NodeState.LIVE,
        token_digest="ab" * 32,
        admission_request="request-1",
        host="host-a",
        pid=4711,
    )
    return msgspec.structs.replace(record, **changes)


def checkpoint(step: int, rank: int = 0) -> CheckpointRecord:
    return CheckpointRecord(
        run=ONE,
        step=step,
        rank=Rank(rank),
        generation=Generation(1),
        epoch=1,
        step_in_epoch=step,
        path=f"ckpt/train-1_{step}.ckpt",
        digest="cd" * 32,
        file_bytes=4_096,
        state=CheckpointState.PUBLISHED,
    )


def copy(step: int, state: CopyState = CopyState.HELD, holder: str = "worker_1") -> CopyRecord:
    return CopyRecord(
        run=ONE,
        step=step,
        rank=Rank(0),
        node_id=NodeId(holder),
        generation=Generation(1),
        epoch=1,
        step_in_epoch=step,
        path=f"copies/run-1/rank-0/train-1_{step}.ckpt",
        digest="cd" * 32,
        file_bytes=4_096,
        state=state,
    )


def generation(number: int) -> GenerationRecord:
    return GenerationRecord(
        run=ONE,
        generation=Generation(number),
        step=0,
        epoch=1,
        step_in_epoch=0,
        because="all ranks are ready",
    )


def event(step: int) -> EventRecord:
    return EventRecord(kind=EventKind.CHECKPOINT_COMMITTED, step=step, reason="every rank holds it")


ONE_OF_EACH: tuple[Record, ...] = (
    job(),
    RunRecord(run=ONE),
    node(),
    IncarnationRecord(
        node_id=NodeId("worker_3"), incarnation=Incarnation(1), rank=None, host="host-a", pid=4711, run=ONE
    ),
    SlotRecord(node_id=NodeId("worker_3"), slot="worker_1"),
    ProcessRecord(
        node_id=NodeId("worker_3"),
        incarnation=Incarnation(1),
        boot_id="1b8c7a1e-5f9e-4d38-9d6b-9d2f7f3f2a51",
        pid_namespace=4_026_531_836,
        start_ticks=123_456,
    ),
    generation(1),
    LiveSourceRecord(run=ONE, generation=Generation(1), rank=Rank(2), structure="0f" * 32),
    LiveSourceRecord(run=ONE, generation=Generation(2), rank=Rank(1), structure="0f" * 32, replicas="1,3"),
    TrainingEndRecord(run=ONE, step=412, reason="worker_3: the loss is low enough"),
    checkpoint(100),
    copy(100),
    StepRecord(
        node_id=NodeId("worker_3"),
        rank=Rank(3),
        run=ONE,
        generation=Generation(1),
        incarnation=Incarnation(1),
        step=412,
        epoch=2,
        step_in_epoch=12,
    ),
    ActivityRecord(
        node_id=NodeId("worker_3"),
        run=ONE,
        generation=Generation(1),
        number=2,
        rank=Rank(3),
        incarnation=Incarnation(1),
        first_step=300,
        step=412,
        lasting_ms=5_000,
        due_ms=6_000,
    ),
    event(100),
    DirectoryRecord(path="/data/ckpt", prefix="train", run=ONE),
)


def filled(path: Path) -> SchedulerRecords:
    """Make a store with a row in every table, close it cleanly, give what it holds."""
    store = SchedulerStore.open(path)
    store.apply([*ONE_OF_EACH, node("worker_10"), checkpoint(200)], wall_ms=WALL_MS)
    state = store.load()
    store.close()
    return state


def sql(file: Path, *statements: str) -> None:
    """Change a file as a stranger would."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory but the lock's own, with its content."""
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file() and ".lock" not in file.name
    }


_PLAIN: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(),
    type(None): st.none(),
}


def _strategy(hint: Any) -> st.SearchStrategy[Any]:
    hint = getattr(hint, "__supertype__", hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if typing.get_args(hint):
        return st.one_of([_strategy(part) for part in typing.get_args(hint)])
    return st.sampled_from(list(hint))


def any_of(record: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any record of a class, with any value that its types allow."""
    hints = typing.get_type_hints(record)
    return st.builds(record, **{field: _strategy(hints[field]) for field in record.__struct_fields__})
