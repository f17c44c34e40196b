"""Reads the records of a whole file: what the scheduler, or a worker's next incarnation, begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Select

from recovery.core.copy_records import CopyRecord, CopyState
from recovery.core.ids import NodeId
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    CheckpointState,
    DirectoryRecord,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    LiveSourceRecord,
    NodeRecord,
    ProcessRecord,
    RunRecord,
    SlotRecord,
    StepRecord,
    TrainingEndRecord,
)
from recovery.core.tiers import tier_of
from recovery.store.contents import SchedulerRecords, WorkerRecords
from recovery.store.models import CHECKPOINTS, COPIES
from recovery.store.rows import SHAPES, record_of

RecordType = TypeVar("RecordType", bound=msgspec.Struct)

_ROWS_AT_ONCE = 16
"""Of a worker's notes of its saves: mostly the first one is the answer."""


def records_of(
    connection: Connection, record: type[RecordType], path: Path, *, read: Select[Any] | None = None
) -> tuple[RecordType, ...]:
    """Read all rows of a record class (or what `read` finds of them) in the order of their key, each checked against its digest."""
    rows = connection.execute(SHAPES[record].read if read is None else read)
    return tuple(record_of(record, row, path) for row in rows)


def check_rows(connection: Connection, path: Path, *, is_worker: bool) -> None:
    """Check the digest of every row that counts.

    What is only history (`core/policy/history.py`) does not: a long one would delay each start.

    Raises:
        StoreError: names table and key.
    """
    for record in SHAPES:
        if record is CheckpointRecord:
            newest_own_save(connection, path) if is_worker else _checkpoints(connection, path)
        elif record is CopyRecord:
            _copies(connection, path)
        elif record not in (EventRecord, ActivityRecord, IncarnationRecord):
            records_of(connection, record, path)


_NOT_RETIRED = SHAPES[CheckpointRecord].read.where(CHECKPOINTS.c.state != CheckpointState.RETIRED.value)


def _checkpoints(connection: Connection, path: Path) -> tuple[CheckpointRecord, ...]:
    return records_of(connection, CheckpointRecord, path, read=_NOT_RETIRED)


_NOT_GONE = SHAPES[CopyRecord].read.where(COPIES.c.state != CopyState.GONE.value)


def _copies(connection: Connection, path: Path) -> tuple[CopyRecord, ...]:
    return records_of(connection, CopyRecord, path, read=_NOT_GONE)


def newest_own_save(connection: Connection, path: Path) -> CheckpointRecord | None:
    """Of a worker's own notes, that of its newest save on a disk, in the run of its newest plan; None: there is none.

    Read from the newest row back: a year of saves costs what the last one does.
    """
    jobs = records_of(connection, JobRecord, path)
    newest = (
        SHAPES[CheckpointRecord]
        .read.order_by(None)
        .order_by(*(key.desc() for key in CHECKPOINTS.primary_key))
    )
    if jobs:
        newest = newest.where(CHECKPOINTS.c.run == jobs[0].run)
    with connection.execute(newest, execution_options={"yield_per": _ROWS_AT_ONCE}) as rows:
        noted = (record_of(CheckpointRecord, row, path) for row in rows)
        return next((record for record in noted if tier_of(record.path).is_durable), None)


def scheduler_records(connection: Connection, path: Path) -> SchedulerRecords:
    """Read the scheduler's records, in the transaction of `connection`."""
    jobs = records_of(connection, JobRecord, path)
    return SchedulerRecords(
        job=jobs[0] if jobs else None,
        runs=records_of(connection, RunRecord, path),
        nodes=records_of(connection, NodeRecord, path),
        slots=records_of(connection, SlotRecord, path),
        processes=records_of(connection, ProcessRecord, path),
        generations=records_of(connection, GenerationRecord, path),
        checkpoints=_checkpoints(connection, path),
        copies=_copies(connection, path),
        live_sources=records_of(connection, LiveSourceRecord, path),
        training_ends=records_of(connection, TrainingEndRecord, path),
    )


def worker_records(connection: Connection, path: Path) -> WorkerRecords:
    """Read a worker's records, in the transaction of `connection`. The file holds rows of its own node only."""
    newest = newest_own_save(connection, path)
    steps = {step.node_id: step for step in records_of(connection, StepRecord, path)}
    nodes = {node.node_id: node for node in records_of(connection, NodeRecord, path)}
    return WorkerRecords(
        directories=records_of(connection, DirectoryRecord, path),
        checkpoints=(newest,) if newest is not None else (),
        step=steps.get(NodeId(path.stem)),
        node=nodes.get(NodeId(path.stem)),
        job=next(iter(records_of(connection, JobRecord, path)), None),
        generations=records_of(connection, GenerationRecord, path),
    )
