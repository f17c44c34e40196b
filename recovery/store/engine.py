"""Open one file so that what it acknowledges survives: WAL + FULL, the dirty mark, and no checkpoint by accident.

Two facts of SQLite shape this file:

- The last read-write connection that closes folds the -wal into the main file and deletes it, also when the
  interpreter merely ends. A file that was not closed by us must keep its -wal, or the dirty mark would cry
  wolf. So each owner holds a second, read-only connection (the keeper), which can neither fold nor delete,
  and closes it last unless the close is clean.
- Its own automatic folding swallows the error of an fsync, and a page that failed once counts as written
  afterwards. So automatic folding is off and `fold()` does it where an error is heard.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import cast
from urllib.parse import quote

from sqlalchemy import URL, Connection, NullPool, create_engine, event, insert, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from recovery.errors import (
    RecoveryPathError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotOursError,
    StoreWalMissingError,
    StoreWriteError,
)
from recovery.store.commits import Commits, first_value
from recovery.store.file_identity import Place
from recovery.store.migrations import REVISIONS, migrate
from recovery.store.models import META, METADATA, VERSION
from recovery.store.paths import APPLICATION_ID, companion, fsync_directory, is_there, refused

BUSY_S = 5.0
"""How long a write waits for a stranger's lock (a backup tool). Twice that would look like a dead scheduler to a
worker that waits for an answer (15 s); half would fail a backup of a slow disk."""

_FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
"""No space for rows, or for the index of the -wal. Nothing was half written, so trying again is safe."""


class Database:
    """One open file of ours: the owner's connection and its keeper."""

    def __init__(
        self, path: Path, owner: str, *, accept_without_wal: bool, check_rows: Callable[[Connection], object]
    ) -> None:
        """Open or make the file, check it, mark it dirty. The caller holds its lock.

        Args:
            path: the file.
            owner: whose file it is: `scheduler`, or `worker:<node_id>`.
            accept_without_wal: open a dirty file whose -wal is missing or has lost its end, once.
            check_rows: reads all rows once, within a transaction, before anything is written.
        """
        self.path = path
        self.commits = Commits(path)
        self._pid = os.getpid()
        self._failed = False
        self._marked = False
        with translated(path, reading=True):
            if not is_there(path):
                _create(path, owner)
            elif not companion(path, "-wal").exists() and not accept_without_wal and _is_dirty(path):
                raise StoreWalMissingError(path=str(path), wal=companion(path, "-wal").name)
            self._keeper = read_only(path)
            self.connection = _connect(path, wal=True)
        try:
            with translated(path, reading=True):
                check_file(self.connection, path, owner)
                with self.connection.begin():
                    self.commits.check(self.connection, accept_fewer=accept_without_wal)
                    check_rows(self.connection)
            with translated(path, reading=False):
                self._mark(dirty=True)
                self.commits.settle()
                fsync_directory(path.parent)
                self.place = Place(path)
        except BaseException:
            self.fail()
            self.close()
            raise

    def fold(self) -> None:
        """Copy the -wal into the main file as far as readers allow, so that it does not grow without end.

        Raises:
            StoreWriteError: an fsync failed. A full disk is no error here: it is tried again later.
        """
        with suppress(StoreFullError), translated(self.path, reading=False):
            self._marked = self._fold("PASSIVE")

    @property
    def marked(self) -> bool:
        """Whether the dirty mark has reached the main file; a reader that held the file at open can delay it."""
        return self._marked

    def fail(self) -> None:
        """After a failed write nothing more is written to this file, not even at close."""
        self._failed = True

    def close(self) -> None:
        """Close cleanly: no mark, no -wal. After `fail()`, or in a forked child, the files are left as they are."""
        if os.getpid() != self._pid:
            return
        if not self._failed:
            try:
                with translated(self.path, reading=False):
                    self._mark(dirty=False)
            except StoreError:
                self._failed = True  # the -wal keeps the rows, and the mark says so
        if not self._failed:
            self._keeper.close()
        self.connection.close()
        self._keeper.close()

    def _mark(self, *, dirty: bool) -> None:
        with self.connection.begin():
            self.connection.execute(update(META).where(META.c.name == "dirty").values(value=str(int(dirty))))
        self._marked = self._fold("TRUNCATE")

    def _fold(self, mode: str) -> bool:
        """Tell whether all of the -wal reached the main file (after TRUNCATE both counts are 0)."""
        raw = raw_connection(self.connection)  # SQLAlchemy would begin a transaction, in which nothing folds
        busy, frames, folded = raw.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return bool(busy == 0 and frames == folded)


def check_file(connection: Connection, path: Path, owner: str) -> None:
    """Check the whole of an open file but its rows' digests, and bring it to the newest schema.

    Raises:
        StoreCorruptError: SQLite finds damage.
        StoreVersionError: a newer release wrote it.
        StoreNotOursError: it is the file of another node.
    """
    with connection.begin():
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if verdict != "ok":
        raise StoreCorruptError(path=str(path), reason=str(verdict))
    migrate(connection, path)
    with connection.begin():
        found = connection.execute(select(META.c.value).where(META.c.name == "owner")).scalar_one_or_none()
        mark = connection.execute(select(META.c.value).where(META.c.name == "dirty")).scalar_one_or_none()
    if mark not in ("0", "1"):
        raise StoreCorruptError(path=str(path), reason="it does not say whether it was closed")
    if found != owner:
        raise StoreNotOursError(path=str(path), reason=f"it belongs to {found!r}, not to {owner!r}")


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


@contextmanager
def translated(path: Path, *, reading: bool) -> Iterator[None]:
    """Turn errors of SQLite into ours, once, at this border.

    Args:
        path: the file, for the error.
        reading: whether an unknown failure means a damaged file (reading) or a failed write.
    """
    try:
        yield
    except (
        UnicodeDecodeError
    ) as error:  # SQLite's message quotes a damaged schema, and the driver cannot decode it
        raise StoreCorruptError(path=str(path), reason=f"its schema is not text ({error})") from error
    except OSError as error:
        raise refused(path.parent, error) from error
    except (DBAPIError, sqlite3.Error) as error:
        cause = (error.orig if isinstance(error, DBAPIError) else error) or error
        name, text = getattr(cause, "sqlite_errorname", ""), str(cause)
        if name in _FULL or "disk is full" in text:
            raise StoreFullError(path=str(path), reason=text) from error
        if reading or "malformed" in text or "not a database" in text:
            raise StoreCorruptError(path=str(path), reason=text) from error
        raise StoreWriteError(path=str(path), reason=text) from error
    except SQLAlchemyError as error:  # the process ends while its writer is in the middle of a transaction
        raise StoreWriteError(path=str(path), reason=str(error)) from error


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


def _connect(path: Path, *, wal: bool) -> Connection:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_S, "isolation_level": None},
    )
    if wal:
        event.listen(engine, "connect", lambda raw, _record: harden(raw, str(path)))
    event.listen(engine, "begin", _begin)
    return engine.connect()


def _begin(connection: Connection) -> None:
    """The driver's own implicit BEGIN comes late and spares DDL; ours covers all, and waits for its lock at once."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_dirty(path: Path) -> bool:
    """Read the mark without making a -wal, which would hide that there is none."""
    with closing(read_only(path, "immutable=1")) as connection:
        return bool(connection.execute("SELECT value FROM meta WHERE name = 'dirty'").fetchone() != ("0",))


def raw_connection(connection: Connection) -> sqlite3.Connection:
    """The driver's own connection underneath."""
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def _create(path: Path, owner: str) -> None:
    """Make the file under another name and give it its own when it is complete: a crash leaves no half schema."""
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with closing(_connect(draft, wal=False)) as connection:
            with connection.begin():
                connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
                METADATA.create_all(connection, checkfirst=False)
                connection.execute(insert(VERSION).values(version_num=REVISIONS[-1]))
                facts = {"owner": owner, "dirty": "0", "commits": first_value()}
                connection.execute(insert(META), [{"name": name, "value": facts[name]} for name in facts])
            harden(raw_connection(connection), str(path))
        os.fsync(descriptor)
        draft.rename(path)
        fsync_directory(path.parent)
    except BaseException:
        for suffix in ("", "-journal", "-wal", "-shm"):  # our own draft, made above, which never held a row
            companion(draft, suffix).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
