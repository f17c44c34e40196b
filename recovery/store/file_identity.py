"""Is the file that we have open still the one at its name? Writing on into a deleted file acknowledges what nobody will read."""

from __future__ import annotations

from pathlib import Path

from recovery.errors import StoreError
from recovery.store.paths import companion

_Identity = tuple[int, int]
"""Device and inode."""


class FileIdentity:
    """An open store's file and its -wal, as they were found once both were open."""

    def __init__(self, path: Path) -> None:
        """Remember what lies there. The -wal stays the same file until the store is closed: its keeper sees to that."""
        self._path = path
        self._opened = {file: _identity(file) for file in (path, companion(path, "-wal"))}

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


def _identity(file: Path) -> _Identity:
    found = file.lstat()
    return found.st_dev, found.st_ino
