"""Is the file that we have open still the one at its name? Writing on into a deleted file acknowledges what nobody will read.

And is a file that somebody asks for one that we have open? POSIX drops all locks that a process holds on a file when it closes any
descriptor of it. SQLite knows that of its own descriptors; one that was opened beside it costs the store its locks without an error, and
the next program that looks (a backup, a shell) folds and deletes the -wal of a running owner.
"""

from __future__ import annotations

import os
from pathlib import Path

from recovery.errors import StoreError
from recovery.store.paths import companion

_Identity = tuple[int, int]
"""Device and inode."""


class FileIdentity:
    """An open store's file and its -wal, as they were found."""

    def __init__(self, path: Path) -> None:
        """Remember the file, before SQLite opens it: from now on this process opens it by SQLite alone."""
        self._path, self.pid = path, os.getpid()
        self._opened = {path: _identity(path)}
        _open_here[self._opened[path]] = self

    def add_log(self) -> None:
        """Remember the -wal too. It stays the same file until the store is closed: the store's keeper sees to that."""
        log = companion(self._path, "-wal")
        self._opened[log] = _identity(log)

    def forget(self) -> None:
        """The file is closed. A second call does nothing."""
        _open_here.pop(self._opened[self._path], None)

    def check(self) -> None:
        """Look again.

        Raises:
            StoreError: one of them is gone, or another file has its name; what was written since may be lost.
        """
        for file, opened in self._opened.items():
            try:
                reason = "" if _identity(file) == opened else "is another file now"
            except FileNotFoundError:
                reason = "is gone"
            except OSError as error:
                # The file system itself is gone.
                reason = f"cannot be looked at ({error.strerror})"
            if reason:
                raise StoreError("STORE_GONE", path=str(self._path), file=file.name, reason=reason)


_open_here: dict[_Identity, FileIdentity] = {}
"""The stores that this process has open. A forked child inherits the list and none of the locks."""


def open_here(path: Path) -> FileIdentity | None:
    """The store that this process has open at a name, however the name is written; None: it has none there."""
    try:
        found = _open_here.get(_identity(path))
    except OSError:
        return None
    return found if found is not None and found.pid == os.getpid() else None


def _identity(file: Path) -> _Identity:
    found = file.lstat()
    return found.st_dev, found.st_ino
