"""Questions to a store from outside: for the command line and for code that inspects a job, living or dead (see snapshot.py)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Connection, Select, and_, func, select

from recovery.core.failed_work import KINDS, FailedWork, sentence_of
from recovery.core.ids import NodeId, RunId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    EventKind,
    EventRecord,
    JobRecord,
    StepRecord,
)
from recovery.errors import StoreError
from recovery.store import snapshot
from recovery.store.contents import SchedulerRecords, WorkerRecords
from recovery.store.models import ACTIVITY, EVENTS, STEP_PROGRESS
from recovery.store.paths import refused, scheduler_path, worker_path
from recovery.store.rows import SHAPES, record_of
from recovery.store.scheduler_address import SchedulerAddress, scheduler_address
from recovery.store.stored_records import records_of, scheduler_records, worker_records
from recovery.store.thinning import IS_FAILED_WORK, failed_before

RecordType = TypeVar("RecordType", bound=msgspec.Struct)


class Written(msgspec.Struct, Generic[RecordType], frozen=True, gc=False):
    """A record and when it was written, milliseconds since 1970 UTC."""

    record: RecordType
    wall_ms: int


class WorkerNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has recorded of its progress, and when. Each tuple is in the order of its key."""

    step: Written[StepRecord] | None = None
    activity: tuple[Written[ActivityRecord], ...] = ()
    checkpoints: tuple[Written[CheckpointRecord], ...] = ()


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event as it lies in the file."""

    sequence: int
    """1, 2, 3, ... in the order of the writes."""
    wall_ms: int
    """When it was written, milliseconds since 1970 UTC."""
    event: EventRecord


def read_scheduler(recovery_path: Path, *, accept_without_wal: bool = False) -> SchedulerRecords:
    """Read the scheduler's records as of its last commit.

    Args:
        recovery_path: the directory of the job.
        accept_without_wal: read a file that was not closed cleanly although its -wal is missing.

    Raises:
        RecoveryPathError: there is no store.
        StoreError: it cannot be used as it is; see its classes.
    """
    path = scheduler_path(recovery_path)
    return snapshot.read_snapshot(
        path, lambda connection: scheduler_records(connection, path), accept_without_wal
    )


def read_job(recovery_path: Path, *, accept_without_wal: bool = False) -> JobRecord | None:
    """Read which job the scheduler's store is of, and nothing else. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    return snapshot.read_snapshot(
        path,
        lambda connection: next(iter(records_of(connection, JobRecord, path)), None),
        accept_without_wal,
    )


def read_worker(recovery_path: Path, node_id: str, *, accept_without_wal: bool = False) -> WorkerRecords:
    """Read a worker's records as of its last commit. Errors as of `read_scheduler`."""
    path = worker_path(recovery_path, node_id)
    return snapshot.read_snapshot(
        path, lambda connection: worker_records(connection, path), accept_without_wal
    )


def read_scheduler_address(recovery_path: Path, node_id: str) -> SchedulerAddress | None:
    """Read where a worker's job has its scheduler; None: its store does not say. Errors as of `read_scheduler`."""
    path = worker_path(recovery_path, node_id)
    return snapshot.read_snapshot(
        path, lambda connection: scheduler_address(connection, path), accept_without_wal=True
    )


def compile_statements() -> None:
    """Prepare `read_worker` in this process and its forks: the first one costs 15 ms more than each later one, nearly all of it SQLAlchemy's."""
    path = Path("worker.db")
    snapshot.compile_statements(lambda connection: worker_records(connection, path))


def read_notes(recovery_path: Path, node_id: str, *, generation: int | None = None) -> WorkerNotes:
    """Read how far a worker has come, and when. Errors as of `read_scheduler`.

    Args:
        recovery_path: the directory of the job.
        node_id: whose.
        generation: its activity in this one only; None: in all.
    """
    path = worker_path(recovery_path, node_id)
    activity = select(ACTIVITY).order_by(*ACTIVITY.primary_key)
    if generation is not None:
        activity = activity.where(ACTIVITY.c.generation == generation)

    def notes(connection: Connection) -> WorkerNotes:
        steps = _written(connection, StepRecord, select(STEP_PROGRESS), path)
        return WorkerNotes(
            step=next((step for step in steps if step.record.node_id == node_id), None),
            activity=_written(connection, ActivityRecord, activity, path),
            checkpoints=_written(connection, CheckpointRecord, SHAPES[CheckpointRecord].read, path),
        )

    return snapshot.read_snapshot(path, notes, accept_without_wal=True)


def _written(
    connection: Connection, record: type[RecordType], wanted: Select[Any], path: Path
) -> tuple[Written[RecordType], ...]:
    return tuple(Written(record_of(record, row, path), int(row[-2])) for row in connection.execute(wanted))


def read_events(
    recovery_path: Path,
    *,
    after: int = 0,
    limit: int = 1000,
    newest: bool = False,
    node_id: str | None = None,
    since_ms: int = 0,
) -> tuple[StoredEvent, ...]:
    """Read the scheduler's event log, oldest first. Errors as of `read_scheduler`.

    Args:
        recovery_path: the directory of the job.
        after: only events with a higher sequence; the last one read, to go on.
        limit: at most so many.
        newest: of more, the last ones; else the first ones.
        node_id: only those about this node; None: all.
        since_ms: only those written at or after, milliseconds since 1970 UTC.
    """
    path = scheduler_path(recovery_path)
    order = EVENTS.c.sequence.desc() if newest else EVENTS.c.sequence
    wanted = select(EVENTS).where(EVENTS.c.sequence > after).order_by(order).limit(limit)
    if node_id is not None:
        wanted = wanted.where(EVENTS.c.node_id == node_id)
    if since_ms:
        wanted = wanted.where(EVENTS.c.wall_ms >= since_ms)

    found = _events(wanted, path)
    return found[::-1] if newest else found


def read_newest_events(
    recovery_path: Path, kinds: Collection[EventKind], limit: int
) -> tuple[StoredEvent, ...]:
    """Read the newest events of some kinds, newest first, so many at most. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    named = EVENTS.c.kind.in_([kind.value for kind in kinds])
    wanted = select(EVENTS).where(named).order_by(EVENTS.c.sequence.desc()).limit(limit)

    return _events(wanted, path)


def _events(wanted: Select[Any], path: Path) -> tuple[StoredEvent, ...]:
    def events(connection: Connection) -> tuple[StoredEvent, ...]:
        return tuple(
            StoredEvent(sequence=row[0], wall_ms=row[-2], event=record_of(EventRecord, row, path))
            for row in connection.execute(wanted)
        )

    return snapshot.read_snapshot(path, events, accept_without_wal=True)


def read_not_ready(recovery_path: Path) -> frozenset[NodeId]:
    """Read whose newest process has not said since it was admitted that it can follow a plan. Errors as of `read_scheduler`."""
    admitted, ready = EventKind.NODE_ADMITTED.value, EventKind.NODE_READY.value
    wanted = (
        select(EVENTS.c.node_id, EVENTS.c.kind, func.max(EVENTS.c.sequence))
        .where(EVENTS.c.kind.in_((admitted, ready)))
        .group_by(EVENTS.c.node_id, EVENTS.c.kind)
    )

    def newest(connection: Connection) -> dict[tuple[str, str], int]:
        return {(node_id, kind): sequence for node_id, kind, sequence in connection.execute(wanted)}

    last = snapshot.read_snapshot(scheduler_path(recovery_path), newest, accept_without_wal=True)
    return frozenset(
        NodeId(node_id)
        for (node_id, kind), sequence in last.items()
        if kind == admitted and sequence > last.get((node_id, ready), 0)
    )


def read_failed_work(recovery_path: Path, run: RunId) -> FailedWork:
    """Count what failed beside training, by the event log and what was counted of it before it was thinned. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    of_run = and_(IS_FAILED_WORK, EVENTS.c.run == run)
    by_kind = select(EVENTS.c.kind, func.count().label("events")).where(of_run).group_by(EVENTS.c.kind)
    newest = select(EVENTS).where(of_run).order_by(EVENTS.c.sequence.desc()).limit(1)

    def count(connection: Connection) -> FailedWork:
        found: dict[str, int] = {row.kind: row.events for row in connection.execute(by_kind)}
        counts = {
            field: found.get(kind.value, 0) + failed_before(connection, run, kind, path)
            for kind, field in KINDS.items()
        }
        last = [sentence_of(record_of(EventRecord, row, path)) for row in connection.execute(newest)]
        return FailedWork(**counts, last_failed="".join(last))

    return snapshot.read_snapshot(path, count, accept_without_wal=True)


def read_notices(recovery_path: Path, run: RunId) -> int:
    """Count how often a run was asked to let ranks go, or to end, by the event log. Errors as of `read_scheduler`."""
    of_run = and_(EVENTS.c.kind == EventKind.DRAIN_ENDED.value, EVENTS.c.run == run)
    wanted = select(func.count()).select_from(EVENTS).where(of_run)

    def count(connection: Connection) -> int:
        return int(connection.execute(wanted).scalar_one())

    return snapshot.read_snapshot(scheduler_path(recovery_path), count, accept_without_wal=True)


def read_checkpoints(recovery_path: Path) -> tuple[CheckpointRecord, ...]:
    """Read every checkpoint that the scheduler has ever known, retired ones too. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    return snapshot.read_snapshot(
        path, lambda connection: records_of(connection, CheckpointRecord, path), accept_without_wal=True
    )


def stored_workers(recovery_path: Path) -> tuple[str, ...]:
    """Node ids whose worker has a file, sorted.

    Raises:
        RecoveryPathError: the directory is there and cannot be listed.
    """
    directory = recovery_path / "workers"
    try:
        return tuple(
            sorted(
                path.stem
                for path in directory.iterdir()
                if path.suffix == ".db" and re.match(NODE_ID_PATTERN, path.stem)
            )
        )
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise refused(directory, error) from error


def check_scheduler(recovery_path: Path) -> None:
    """Check the whole of the scheduler's file, the whole event log included. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    snapshot.read_snapshot(path, lambda connection: _check_all(connection, path), accept_without_wal=False)


def check_worker(recovery_path: Path, node_id: str) -> None:
    """Check the whole of a worker's file. Errors as of `read_scheduler`."""
    path = worker_path(recovery_path, node_id)
    snapshot.read_snapshot(path, lambda connection: _check_all(connection, path), accept_without_wal=False)


def _check_all(connection: Connection, path: Path) -> None:
    verdict = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
    if verdict != "ok":
        raise StoreError("STORE_CORRUPT", path=str(path), reason=str(verdict))
    for record in SHAPES:
        records_of(connection, record, path)
