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
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Connection, insert, update

from recovery.errors import StoreBusyError, StoreError, StoreWaitError
from recovery.store.connections import connect, harden, raw_connection, read_only, translated
from recovery.store.file_identity import FileIdentity
from recovery.store.meta import meta_text
from recovery.store.migrations import REVISIONS, migrate
from recovery.store.models import META, METADATA, VERSION
from recovery.store.paths import APPLICATION_ID, companion, fsync_directory, is_there
from recovery.store.write_count import Commits, first_value

_HEADER_BYTES, _PAGE_SIZE_AT = 100, 16
"""Of a SQLite file: its first bytes, and where they say how large a page is (sqlite.org/fileformat2.html)."""


class Database:
    """One open file of ours: the owner's connection and its keeper."""

    def __init__(
        self,
        path: Path,
        owner: str,
        *,
        accept_without_wal: bool,
        check_rows: Callable[[Connection], object],
        on_busy: Callable[[StoreBusyError], object] | None,
    ) -> None:
        """Open or make the file, check it, mark it dirty. The caller holds its lock.

        Args:
            path: the file.
            owner: whose file it is: `scheduler`, or `worker:<node_id>`.
            accept_without_wal: open a dirty file whose -wal is missing or has lost its end, once.
            check_rows: reads all rows once, within a transaction, before anything is written.
            on_busy: called each time another program has kept the file locked for BUSY_S, which is waited for then; None: that is an error.
        """
        self.path = path
        self.commits = Commits(path)
        self._failed = False
        self._marked = False
        with translated(path, reading=True):
            if not is_there(path):
                _create(path, owner)
            elif not companion(path, "-wal").exists():
                _check_size(path)
                if not accept_without_wal and _is_dirty(path):
                    raise StoreError("STORE_WAL_MISSING", path=str(path), wal=companion(path, "-wal").name)
            self.file_identity = FileIdentity(path)
        try:
            with translated(path, reading=True):
                self._keeper = read_only(path)
                self.connection = connect(path, wal=True)
        except BaseException:
            self.file_identity.forget()
            raise
        try:
            if on_busy is not None:
                self._await_turn(on_busy)
            with translated(path, reading=True):
                check_file(self.connection, path, owner)
                with self.connection.begin():
                    self.commits.check(self.connection, accept_fewer=accept_without_wal)
                    check_rows(self.connection)
            with translated(path, reading=False):
                self._mark(dirty=True)
                self.commits.settle()
                fsync_directory(path.parent)
                self.file_identity.add_log()
        except BaseException:
            self.fail()
            self.close()
            raise

    def fold(self) -> None:
        """Copy the -wal into the main file as far as readers allow, so that it does not grow without end.

        Raises:
            StoreError: an fsync failed. A full disk, or another program's lock, is no error here: it is tried again later.
        """
        with suppress(StoreWaitError), translated(self.path, reading=False):
            self._marked = self._fold("PASSIVE")

    @property
    def marked(self) -> bool:
        """Whether the dirty mark has reached the main file; a reader that held the file at open can delay it."""
        return self._marked

    def fail(self) -> None:
        """After a failed write nothing more is written to this file, not even at close."""
        self._failed = True

    def close(self) -> None:
        """Close cleanly: no mark, no -wal. After `fail()` the files are left as they are."""
        if not self._failed:
            try:
                with translated(self.path, reading=False):
                    self._mark(dirty=False)
            except StoreError:
                # The -wal keeps the rows, and the mark says so.
                self._failed = True
        if not self._failed:
            self._keeper.close()
        self.connection.close()
        self._keeper.close()
        self.file_identity.forget()

    def _await_turn(self, on_busy: Callable[[StoreBusyError], object]) -> None:
        """Wait for another program's lock with the file open: whoever closes it as the last one folds the -wal and deletes it."""
        while True:
            try:
                with translated(self.path, reading=True), self.connection.begin():
                    return
            except StoreBusyError as error:
                on_busy(error)

    def _mark(self, *, dirty: bool) -> None:
        with self.connection.begin():
            self.connection.execute(update(META).where(META.c.name == "dirty").values(value=str(int(dirty))))
        self._marked = self._fold("TRUNCATE")

    def _fold(self, mode: str) -> bool:
        """Give whether all of the -wal reached the main file (after TRUNCATE both counts are 0)."""
        # Through SQLAlchemy it would run in a transaction, in which nothing folds.
        raw = raw_connection(self.connection)
        busy, frames, folded = raw.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return bool(busy == 0 and frames == folded)


def _check_size(path: Path) -> None:
    """Refuse a file whose last page is cut. SQLite takes what is missing for zeros, which it may have been."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    page_bytes = int.from_bytes(header[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 2], "big")
    if page_bytes and path.stat().st_size % page_bytes:
        reason = (
            f"{path.stat().st_size} bytes are no whole number of its pages of {page_bytes} bytes: it was cut"
        )
        raise StoreError("STORE_CORRUPT", path=str(path), reason=reason)


def check_file(connection: Connection, path: Path, owner: str) -> None:
    """Check the whole of an open file but its rows' digests, and bring it to the newest schema.

    Raises:
        StoreError: SQLite finds damage.
        StoreVersionError: a newer release wrote it.
        StoreError: it is the file of another node.
    """
    with connection.begin():
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if verdict != "ok":
        raise StoreError("STORE_CORRUPT", path=str(path), reason=str(verdict))
    migrate(connection, path)
    with connection.begin():
        found, mark = meta_text(connection, "owner", path), meta_text(connection, "dirty", path)
    if mark not in ("0", "1"):
        raise StoreError("STORE_CORRUPT", path=str(path), reason="it does not say whether it was closed")
    if found != owner:
        raise StoreError(
            "STORE_NOT_OURS", path=str(path), reason=f"it belongs to {found!r}, not to {owner!r}"
        )


def _is_dirty(path: Path) -> bool:
    """Read the mark without making a -wal, which would hide that there is none."""
    with closing(read_only(path, "immutable=1")) as connection:
        return bool(connection.execute("SELECT value FROM meta WHERE name = 'dirty'").fetchone() != ("0",))


def _create(path: Path, owner: str) -> None:
    """Make the file under another name and give it its own when it is complete: a crash leaves no half schema."""
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with closing(connect(draft, wal=False)) as connection:
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
        # Our own draft, which has never held a row.
        for suffix in ("", "-journal", "-wal", "-shm"):
            companion(draft, suffix).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
