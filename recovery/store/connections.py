"""Connections to SQLite: for the owner, durable or refused; for readers, unable to write. Its errors become ours here."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast
from urllib.parse import quote

from sqlalchemy import Connection, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from recovery import file_systems
from recovery.errors import RecoveryPathError, StoreBusyError, StoreError, StoreFullError
from recovery.store.paths import refusal, refused

BUSY_S = 5.0
"""How long a write waits for another program's lock (a backup tool). Twice that would look like a dead scheduler to a
worker that waits for an answer (15 s); half would fail a backup of a slow disk."""

_FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
"""No space for rows, or for the index of the -wal. Nothing was half written, so trying again is safe."""

_NOT_OPENED = "unable to open database file"
_OF_SYSTEM = ("disk I/O error", _NOT_OPENED, "attempt to write a readonly database")
"""The system refuses a call, and SQLite does not say which nor why. A page that was not taken is not committed."""
_CUT = ("SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS")
"""But these are damage."""
_NO_SPACE = (errno.EDQUOT, errno.ENOSPC)


def connect(path: Path, *, wal: bool) -> Connection:
    """Open a file for its owner.

    Args:
        path: the file.
        wal: make each commit durable (see `harden`); a new file is written without.
    """
    mark = _source.set((path, wal))
    try:
        return _ENGINE.connect()
    finally:
        _source.reset(mark)


_source: ContextVar[tuple[Path, bool] | None] = ContextVar("source", default=None)
"""The file that is opened, and whether each commit is to be durable."""


def _connected() -> sqlite3.Connection:
    source = _source.get()
    if source is None:
        reason = "the connection has ended, and its file is not opened again"
        raise sqlite3.OperationalError(reason)
    return sqlite3.connect(source[0], timeout=BUSY_S, isolation_level=None, check_same_thread=False)


_ENGINE = create_engine("sqlite://", creator=_connected, poolclass=NullPool)
"""One for all files: an engine of its own would compile each statement again."""


@event.listens_for(_ENGINE, "connect")
def _harden(raw: sqlite3.Connection, _record: object) -> None:
    path, wal = cast("tuple[Path, bool]", _source.get())
    if wal:
        harden(raw, str(path))


_begins_by: ContextVar[str] = ContextVar("begins_by", default="BEGIN IMMEDIATE")


@event.listens_for(_ENGINE, "begin")
def _begin(connection: Connection) -> None:
    """The driver's own implicit BEGIN comes late and spares DDL; ours covers all, and waits for its lock at once."""
    connection.exec_driver_sql(_begins_by.get())


@contextmanager
def reading(connection: Connection) -> Iterator[Connection]:
    """A transaction of an owner that only reads: with a write-ahead log it waits for nobody's lock."""
    mark = _begins_by.set("BEGIN")
    try:
        begun = connection.begin()
    finally:
        _begins_by.reset(mark)
    with begun:
        yield connection


def read_only(path: Path, *options: str) -> sqlite3.Connection:
    """Open a file with SQLite's own means so that nothing can write through it, and attach to its -wal."""
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{'&'.join(('mode=ro', *options))}",
        uri=True,
        timeout=BUSY_S,
        check_same_thread=False,
    )
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def raw_connection(connection: Connection) -> sqlite3.Connection:
    """The driver's own connection underneath."""
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def harden(connection: sqlite3.Connection, path: str) -> None:
    """Set what makes a commit durable, and read it back: where it cannot be had, nothing may be acknowledged.

    Raises:
        RecoveryPathError: the file system cannot hold a write-ahead log.
    """
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous=FULL")
    level = connection.execute("PRAGMA synchronous").fetchone()[0]
    if (mode, level) != ("wal", 2):
        reason = f"SQLite cannot keep a write-ahead log there (journal_mode {mode}, synchronous {level})"
        raise RecoveryPathError(path=path, reason=reason, next_step="Choose a directory on a local disk.")
    connection.execute("PRAGMA wal_autocheckpoint=0")


@contextmanager
def translated(path: Path, *, reading: bool) -> Iterator[None]:
    """Turn errors of SQLite into ours, once, at this border.

    Args:
        path: the file, for the error.
        reading: whether an unknown failure means a damaged file (reading) or a failed write.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        # SQLite's message quotes a damaged schema, and the driver cannot decode it.
        raise StoreError(
            "STORE_CORRUPT", path=str(path), reason=f"its schema is not text ({error})"
        ) from error
    except OSError as error:
        raise refused(path.parent, error) from error
    except (DBAPIError, sqlite3.Error) as error:
        raise _as_ours(path, error, reading=reading) from error
    except SQLAlchemyError as error:
        # The process ends while its writer is in the middle of a transaction.
        raise StoreError("STORE_WRITE", path=str(path), reason=str(error)) from error


def _as_ours(path: Path, error: DBAPIError | sqlite3.Error, *, reading: bool) -> StoreError:
    cause = (error.orig if isinstance(error, DBAPIError) else error) or error
    name, text = getattr(cause, "sqlite_errorname", ""), str(cause)
    is_of_system = name not in _CUT and text in _OF_SYSTEM
    found = refusal(path) if is_of_system or name in _FULL else None
    number = found.errno if found is not None else None
    if found is not None and number in file_systems.NEXT_STEPS and (reading or number != errno.EIO):
        return _refused(path, file_systems.words_of(found, path), file_systems.NEXT_STEPS[number])
    if number in _NO_SPACE or name in _FULL or "disk is full" in text:
        return StoreFullError(path=str(path), reason=file_systems.words_of(found, path) if found else text)
    if "database is locked" in text:
        return StoreBusyError(path=str(path), reason=f"for {BUSY_S:g} s")
    if reading and is_of_system and text != _NOT_OPENED:
        return _refused(path, text, file_systems.NEXT_STEPS[errno.EIO])
    damaged = reading or "malformed" in text or "not a database" in text
    return StoreError("STORE_CORRUPT" if damaged else "STORE_WRITE", path=str(path), reason=text)


def _refused(path: Path, reason: str, next_step: str) -> StoreError:
    return StoreError("STORE_REFUSED", path=str(path), reason=reason, next_step=next_step)
