"""Read a store from outside: for the command line and for whoever inspects a job, living or dead.

Never blocks the owner, never writes. With a living (or killed) owner both companions of the file are there and
SQLite reads beside the writer. Without them SQLite would make them, and an empty -wal would hide that a full one
was lost: then the file is read as one that cannot change, or, when only its -wal is there, as a private copy.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Connection, NullPool, Select, create_engine, event, select

from recovery.core.messages import NODE_ID_PATTERN
from recovery.core.records import ActivityRecord, CheckpointRecord, EventRecord, JobRecord, StepRecord
from recovery.errors import (
    RecoveryPathError,
    StoreCorruptError,
    StoreError,
    StoreWalMissingError,
    StoreWriteError,
)
from recovery.store.commits import Commits
from recovery.store.engine import raw_connection, read_only, translated
from recovery.store.migrations import REVISIONS, migrate
from recovery.store.models import ACTIVITY, EVENTS, META, STEP_PROGRESS, VERSION
from recovery.store.paths import absent, companion, is_there, refused
from recovery.store.repository import (
    SchedulerState,
    WorkerState,
    records_of,
    scheduler_path,
    scheduler_state,
    worker_path,
    worker_state,
)
from recovery.store.rows import SHAPES, record_of

Answer = TypeVar("Answer")
RecordType = TypeVar("RecordType", bound=msgspec.Struct)

TRIES = 20
"""How often reading is begun anew because an owner started or ended meanwhile: both happen once, not 20 times."""


class Written(msgspec.Struct, Generic[RecordType], frozen=True, gc=False):
    """A record and when it was written, milliseconds since 1970 UTC."""

    record: RecordType
    wall_ms: int


class WorkerNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has noted of its progress, and when. Each tuple is in the order of its key."""

    step: Written[StepRecord] | None = None
    activity: tuple[Written[ActivityRecord], ...] = ()
    checkpoints: tuple[Written[CheckpointRecord], ...] = ()


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the story as it lies in the file."""

    sequence: int
    """1, 2, 3, ... in the order of the writes."""
    wall_ms: int
    """When it was written, milliseconds since 1970 UTC."""
    event: EventRecord


def read_scheduler(recovery_path: Path, *, accept_without_wal: bool = False) -> SchedulerState:
    """Read the scheduler's state as of its last commit.

    Args:
        recovery_path: the directory of the job.
        accept_without_wal: read a file that was not closed cleanly although its -wal is missing.

    Raises:
        RecoveryPathError: there is no store.
        StoreError: it cannot be used as it is; see its classes.
    """
    path = scheduler_path(recovery_path)
    return _read(path, lambda connection: scheduler_state(connection, path), accept_without_wal)


def read_job(recovery_path: Path, *, accept_without_wal: bool = False) -> JobRecord | None:
    """Read which job the scheduler's store is of, and nothing else. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    return _read(
        path,
        lambda connection: next(iter(records_of(connection, JobRecord, path)), None),
        accept_without_wal,
    )


def read_worker(recovery_path: Path, node_id: str, *, accept_without_wal: bool = False) -> WorkerState:
    """Read a worker's state as of its last commit. Errors as of `read_scheduler`."""
    path = worker_path(recovery_path, node_id)
    return _read(path, lambda connection: worker_state(connection, path), accept_without_wal)


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

    return _read(path, notes, accept_without_wal=True)


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
    """Read the scheduler's story, oldest first. Errors as of `read_scheduler`.

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

    def story(connection: Connection) -> tuple[StoredEvent, ...]:
        told = [
            StoredEvent(sequence=row[0], wall_ms=row[-2], event=record_of(EventRecord, row, path))
            for row in connection.execute(wanted)
        ]
        return tuple(reversed(told) if newest else told)

    return _read(path, story, accept_without_wal=True)


def read_checkpoints(recovery_path: Path) -> tuple[CheckpointRecord, ...]:
    """Read every checkpoint that the scheduler has ever known, retired ones too. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    return _read(
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
    """Check the whole of the scheduler's file, every row of the story included. Errors as of `read_scheduler`."""
    path = scheduler_path(recovery_path)
    _read(path, lambda connection: _check_all(connection, path), accept_without_wal=False)


def check_worker(recovery_path: Path, node_id: str) -> None:
    """Check the whole of a worker's file. Errors as of `read_scheduler`."""
    path = worker_path(recovery_path, node_id)
    _read(path, lambda connection: _check_all(connection, path), accept_without_wal=False)


def _check_all(connection: Connection, path: Path) -> None:
    verdict = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
    if verdict != "ok":
        raise StoreCorruptError(path=str(path), reason=str(verdict))
    for record in SHAPES:
        records_of(connection, record, path)


def _read(path: Path, question: Callable[[Connection], Answer], accept_without_wal: bool) -> Answer:
    """Ask a file. Neither an answer nor an error counts if the file changed meanwhile and SQLite did not mind that."""
    with translated(path, reading=True):
        for _ in range(TRIES):
            before = _facts(path)
            try:
                answer = _ask(path, question, accept_without_wal)
            except (StoreError, RecoveryPathError):
                if _facts(path) == before:
                    raise
            else:
                if _facts(path) == before:
                    return answer
    raise StoreWriteError(path=str(path), reason="it changed each time it was read")


def _ask(path: Path, question: Callable[[Connection], Answer], accept_without_wal: bool) -> Answer:
    commits = Commits(path)
    with translated(path, reading=True):
        if not is_there(path):
            raise absent(path)
        with _opened(path) as stored, _as_of_now(stored, path) as connection, connection.begin():
            if not companion(path, "-wal").exists() and not accept_without_wal and is_dirty(connection):
                raise StoreWalMissingError(path=str(path), wal=companion(path, "-wal").name)
            commits.check(connection, accept_fewer=accept_without_wal)
            return question(connection)


@contextmanager
def _opened(path: Path) -> Iterator[Connection]:
    """A connection through which nothing can be written, and which makes no companion of the file."""
    with ExitStack() as stack:
        source, options = path, list[str]()
        if not companion(path, "-wal").exists():
            options = ["immutable=1"]
        elif not companion(path, "-shm").exists():
            source = _copied(path, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        mark = _source.set((source, options))
        try:
            connection = stack.enter_context(closing(_ENGINE.connect()))
        finally:
            _source.reset(mark)
        yield connection


@contextmanager
def _as_of_now(stored: Connection, path: Path) -> Iterator[Connection]:
    """The same, or, where an older release wrote the file, a copy in memory of the newest schema: a reader brings no file up to date.

    Raises:
        StoreVersionError, StoreCorruptError: as `migrate`.
    """
    with stored.begin():
        found = stored.execute(select(VERSION.c.version_num)).scalars().all()
    if found == [REVISIONS[-1]]:
        yield stored
        return
    engine = create_engine("sqlite://", poolclass=NullPool)
    with closing(engine.connect()) as copy:
        raw_connection(stored).backup(raw_connection(copy))
        migrate(copy, path)
        yield copy


_source: ContextVar[tuple[Path, Sequence[str]]] = ContextVar("source")
_ENGINE = create_engine(
    "sqlite://", creator=lambda: read_only(_source.get()[0], *_source.get()[1]), poolclass=NullPool
)
"""One for all files: an engine of its own would compile each statement anew, for each of 1,000 workers."""


@event.listens_for(_ENGINE, "begin")
def _begin(connection: Connection) -> None:
    """The driver begins nothing for a SELECT: each would see another state of a file that is being written."""
    connection.exec_driver_sql("BEGIN")


def is_dirty(connection: Connection) -> bool:
    """Does the file say that it was not closed cleanly? In the transaction of `connection`."""
    return connection.execute(select(META.c.value).where(META.c.name == "dirty")).scalar_one_or_none() != "0"


def _copied(path: Path, place: Path) -> Path:
    """Copy the file and its -wal."""
    copy = place / path.name
    shutil.copyfile(path, copy)
    shutil.copyfile(companion(path, "-wal"), companion(copy, "-wal"))
    return copy


def _facts(path: Path) -> tuple[object, ...]:
    """What must not change while the file is read: the companions' presence, and without them the file itself."""
    facts: list[object] = []
    for file in (companion(path, "-wal"), companion(path, "-shm"), path):
        try:
            found = file.stat()
        except FileNotFoundError:
            facts.append(None)
        else:
            facts.append((found.st_ino, found.st_size, found.st_mtime_ns))
    reads_beside_the_owner = None not in facts[:2]
    return () if reads_beside_the_owner else tuple(facts)
