"""The two stores: load() -> records, apply(batch). Everything else of this package serves these two classes."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection

from recovery import clock, log
from recovery.core.policy.history import History
from recovery.core.records import EventRecord, Record
from recovery.errors import StoreBusyError, StoreError, StoreWaitError
from recovery.store.connections import reading, translated
from recovery.store.contents import SchedulerRecords, WorkerRecords
from recovery.store.engine import Database
from recovery.store.lock import OwnerLock
from recovery.store.meta import ms_since_last_write, note_write_time
from recovery.store.paths import prepare_directory, refuse_links, scheduler_path, worker_path
from recovery.store.rows import SHAPES, row_of
from recovery.store.scheduler_address import SchedulerAddress, note_scheduler_address
from recovery.store.stored_records import check_rows, scheduler_records, worker_records
from recovery.store.thinning import OF_SCHEDULER, OF_WORKER, HistoryThinner, Thinned

_logger = logging.getLogger("recovery.store")
Answer = TypeVar("Answer")

END_S = 2.0
"""How long the end of a store waits for the write under way, which takes milliseconds. A process that is asked to end has some ten seconds."""

FOLD_PAGES = 256
"""Pages between two foldings of the -wal: about 1 MiB. Ten times that makes each start replay 10 MiB, a tenth of it makes every
tenth commit fsync twice more. Pages, since a commit of one row writes whole ones of two tables: 2,000 such rows were 16 MiB."""
_ROWS_A_PAGE = 8
"""Of the longer rows; shorter ones fit more often, and the -wal is folded a little early."""


class _Store:
    """One file, its lock and its connection. Safe to use from several threads: one at a time gets in."""

    _HISTORY: tuple[History, ...]
    """What of it is thinned."""

    def __init__(
        self,
        path: Path,
        owner: str,
        *,
        accept_without_wal: bool,
        on_busy: Callable[[StoreBusyError], object] | None = None,
    ) -> None:
        self._path = path
        self._one_at_a_time = threading.Lock()
        self._pages_since_fold = 0
        self._boot = clock.boot_id()
        self._scheduler: SchedulerAddress | None = None
        """Noted by the first write."""
        self._lock = OwnerLock(path)
        try:
            self._database = Database(
                path,
                owner,
                accept_without_wal=accept_without_wal,
                check_rows=self._check_rows,
                on_busy=on_busy,
            )
        except BaseException:
            self._lock.release()
            raise
        # Also runs when the process ends without close(): SQLite would fold and delete the -wal behind our back.
        self._end = weakref.finalize(self, _end, self._database, self._lock, self._one_at_a_time, os.getpid())

    def _check_rows(self, connection: Connection) -> None:
        check_rows(connection, self._path, is_worker=self._HISTORY is OF_WORKER)
        self._thinner = HistoryThinner(connection, self._path, self._HISTORY)

    def apply(self, records: Sequence[Record], *, wall_ms: int) -> None:
        """Write all records in one transaction, durable when this returns. Upsert by key; events are appended.

        Args:
            records: of one key the last one stays.
            wall_ms: time of the write, milliseconds since 1970 UTC.

        Raises:
            StoreWaitError: no space, or another program's lock; nothing of it was written, it may be applied again.
            StoreError: the file is no longer at its name; anything else; whether it is on disk is unknown until the file is opened again.
        """
        with self._one_at_a_time:
            assert self._end.alive, "nothing is applied to a closed store"
            try:
                self._write(records, wall_ms)
            except StoreWaitError:
                raise
            except StoreError:
                self._database.fail()
                raise

    def check(self) -> None:
        """See that the file is still the one that was opened.

        Raises:
            StoreError: it is not; nothing more is written to it, not even at close.
        """
        with self._one_at_a_time:
            if self._end.alive:
                self._check_file()

    def _check_file(self) -> None:
        try:
            self._database.file_identity.check()
        except StoreError:
            self._database.fail()
            raise

    def _read(self, question: Callable[[Connection, Path], Answer]) -> Answer:
        with (
            self._one_at_a_time,
            translated(self._path, reading=True),
            reading(self._database.connection) as connection,
        ):
            return question(connection, self._path)

    def close(self) -> None:
        """Close cleanly and let the lock go. A second call does nothing."""
        self._end()

    def _write(self, records: Sequence[Record], wall_ms: int) -> None:
        self._database.file_identity.check()
        self._lock.assert_held(self._path)
        rows: dict[type[msgspec.Struct], list[dict[str, Any]]] = {}
        connection = self._database.connection
        try:
            for record in records:
                rows.setdefault(type(record), []).append(row_of(record, wall_ms))
            with translated(self._path, reading=False), connection.begin():
                for kind, batch in rows.items():
                    connection.execute(SHAPES[kind].write, batch)
                self._database.commits.add(connection)
                note_write_time(connection, self._boot)
                if self._scheduler is not None:
                    note_scheduler_address(connection, self._scheduler)
                thinned = self._thin(connection, rows, wall_ms)
        except (UnicodeError, OverflowError) as error:
            raise StoreError(
                "STORE_WRITE", path=str(self._path), reason=f"a value cannot be stored: {error}"
            ) from error
        # What went into a file that nobody will find counts as not written.
        self._database.file_identity.check()
        self._database.commits.note()
        for event in thinned.events:
            _logger.info("%s", log.format_event(event, wall_ms))
        # It is there now, and does not change while a process runs.
        self._scheduler = None
        self._pages_since_fold += 1 + len(rows) + (len(records) + thinned.rows) // _ROWS_A_PAGE
        if self._pages_since_fold >= FOLD_PAGES or not self._database.marked:
            self._pages_since_fold = 0
            self._database.fold()

    def _thin(
        self, connection: Connection, rows: Mapping[type[msgspec.Struct], Sequence[object]], wall_ms: int
    ) -> Thinned:
        """Within the write that makes it due. A worker's store has no events of its own: there the log tells of it."""
        thinned = self._thinner.thin(connection, {kind: len(batch) for kind, batch in rows.items()})
        if thinned.events and self._HISTORY is OF_SCHEDULER:
            connection.execute(
                SHAPES[EventRecord].write, [row_of(event, wall_ms) for event in thinned.events]
            )
        return thinned


class SchedulerStore(_Store):
    """The scheduler's file, `<recovery path>/scheduler.db`."""

    _HISTORY = OF_SCHEDULER

    @classmethod
    def open(
        cls,
        recovery_path: Path,
        *,
        accept_without_wal: bool = False,
        on_busy: Callable[[StoreBusyError], object] | None = None,
    ) -> SchedulerStore:
        """Open or make the file: directory, lock, schema, WAL + FULL, every digest.

        Args:
            recovery_path: absolute; made with mode 0700 if absent.
            accept_without_wal: open a file that was not closed cleanly although its -wal is missing.
            on_busy: called each time another program has kept the file locked for seconds, which is waited for then; None: that is an error.

        Raises:
            RecoveryPathError: the directory cannot serve.
            StoreError: the file cannot be used as it is; see its classes. Nothing was changed.
        """
        prepare_directory(recovery_path)
        path = scheduler_path(recovery_path)
        return cls(path, "scheduler", accept_without_wal=accept_without_wal, on_busy=on_busy)

    def away_ms(self) -> int | None:
        """How long ago the last write was; None: nobody can say, for the machine was restarted since, or it is another one."""
        return self._read(ms_since_last_write)

    def load(self) -> SchedulerRecords:
        """Read all records that the next process begins with.

        Raises:
            StoreError: a row does not match its digest; names table and key.
        """
        return self._read(scheduler_records)


class WorkerStore(_Store):
    """A worker's file, `<recovery path>/workers/<node_id>.db`."""

    _HISTORY = OF_WORKER

    @classmethod
    def open(
        cls,
        recovery_path: Path,
        node_id: str,
        *,
        accept_without_wal: bool = False,
        scheduler: tuple[str, int] | None = None,
    ) -> WorkerStore:
        """Open or make the file, as `SchedulerStore.open`. The first write notes where the job's scheduler is."""
        path = worker_path(recovery_path, node_id)
        prepare_directory(recovery_path)
        refuse_links(path.parent)
        prepare_directory(path.parent)
        store = cls(path, f"worker:{node_id}", accept_without_wal=accept_without_wal)
        store._scheduler = SchedulerAddress(*scheduler) if scheduler is not None else None
        return store

    def load(self) -> WorkerRecords:
        """Read all of them, as `SchedulerStore.load`."""
        return self._read(worker_records)


def _end(database: Database, lock: OwnerLock, one_at_a_time: threading.Lock, owner_pid: int) -> None:
    """Wait for the write under way, for a while: when the process merely ends, its writer thread still runs, and a disk may hold it for ever.

    A forked child leaves file and lock alone, they are its parent's. It could also wait for ever: the lock that a write of its parent
    held at the fork is held in it by no thread that would let it go.
    """
    if os.getpid() != owner_pid:
        return
    if not one_at_a_time.acquire(timeout=END_S):
        _logger.warning(
            "event=store_not_closed %s: a write that is under way has not come back within %g s; the next start finds out whether it is there",
            database.path,
            END_S,
        )
        return
    try:
        database.close()
        lock.release()
    finally:
        one_at_a_time.release()
