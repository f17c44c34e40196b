"""One consistent look at a store from outside, which never blocks its owner and never writes.

With a living (or killed) owner both companions of the file are there and SQLite reads beside the writer. Without them SQLite would make
them, and an empty -wal would hide that a full one was lost: then the file is read as one that cannot change, or, when only its -wal is
there, as a private copy.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, NullPool, create_engine, event, select

from recovery.errors import RecoveryPathError, StoreError
from recovery.store.connections import raw_connection, read_only, translated
from recovery.store.file_identity import open_here
from recovery.store.meta import meta_text
from recovery.store.migrations import REVISIONS, migrate
from recovery.store.models import METADATA, VERSION
from recovery.store.paths import absent, companion, facts_of, is_there
from recovery.store.write_count import Commits

Answer = TypeVar("Answer")

TRIES = 20
"""How often reading is tried again because an owner started or ended meanwhile: both happen once, not 20 times."""


def read_snapshot(path: Path, question: Callable[[Connection], Answer], accept_without_wal: bool) -> Answer:
    """Ask a file. Neither an answer nor an error counts if the file changed meanwhile and SQLite did not notice.

    Args:
        path: the file.
        question: what is read, within a transaction.
        accept_without_wal: read a file that was not closed cleanly although its -wal is missing.

    Raises:
        RecoveryPathError: there is no store.
        StoreError: it cannot be used as it is; see its classes.
    """
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
    raise StoreError("STORE_WRITE", path=str(path), reason="it changed each time it was read")


def compile_statements(question: Callable[[Connection], object]) -> None:
    """Ask an empty store in memory, so that the next to ask, this process or a fork of it, finds the statements compiled."""
    mark = _source.set(None)
    try:
        with closing(_ENGINE.connect()) as connection, connection.begin():
            METADATA.create_all(connection, checkfirst=False)
            connection.execute(select(VERSION.c.version_num)).scalars().all()
            question(connection)
    finally:
        _source.reset(mark)


def _ask(path: Path, question: Callable[[Connection], Answer], accept_without_wal: bool) -> Answer:
    commits = Commits(path)
    with translated(path, reading=True):
        own = open_here(path)
        if own is not None:
            own.check()
        elif not is_there(path):
            raise absent(path)
        with (
            _opened(path, is_own=own is not None) as stored,
            _as_of_now(stored, path) as connection,
            connection.begin(),
        ):
            if (
                not companion(path, "-wal").exists()
                and not accept_without_wal
                and _is_dirty(connection, path)
            ):
                raise StoreError("STORE_WAL_MISSING", path=str(path), wal=companion(path, "-wal").name)
            commits.check(connection, accept_fewer=accept_without_wal)
            return question(connection)


@contextmanager
def _opened(path: Path, *, is_own: bool) -> Iterator[Connection]:
    """A connection through which nothing can be written, and which makes no companion of the file.

    A store that this process has open has both, and is opened in no other way: see file_identity.py.
    """
    with ExitStack() as stack:
        source, options = path, list[str]()
        if not is_own and not companion(path, "-wal").exists():
            options = ["immutable=1"]
        elif not is_own and not companion(path, "-shm").exists():
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
        StoreError: as `migrate`.
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


_source: ContextVar[tuple[Path, Sequence[str]] | None] = ContextVar("source")
"""The file that is opened next, and how; None: an empty one in memory."""


def _connected() -> sqlite3.Connection:
    source = _source.get()
    return sqlite3.connect(":memory:") if source is None else read_only(source[0], *source[1])


_ENGINE = create_engine("sqlite://", creator=_connected, poolclass=NullPool)
"""One for all files: an engine of its own would compile each statement again, for each of 1,000 workers."""


@event.listens_for(_ENGINE, "begin")
def _begin(connection: Connection) -> None:
    """The driver begins nothing for a SELECT: each would see another state of a file that is being written."""
    connection.exec_driver_sql("BEGIN")


def _is_dirty(connection: Connection, path: Path) -> bool:
    """Does the file say that it was not closed cleanly? In the transaction of `connection`."""
    return meta_text(connection, "dirty", path) != "0"


def _copied(path: Path, directory: Path) -> Path:
    """Copy the file and its -wal."""
    copy = directory / path.name
    shutil.copyfile(path, copy)
    shutil.copyfile(companion(path, "-wal"), companion(copy, "-wal"))
    return copy


def _facts(path: Path) -> tuple[object, ...]:
    """What must not change while the file is read: the companions' presence, and without them the file itself."""
    facts = facts_of(companion(path, "-wal"), companion(path, "-shm"), path)
    reads_beside_the_owner = None not in facts[:2]
    return () if reads_beside_the_owner else facts
