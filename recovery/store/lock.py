"""One owner per file, held by the kernel: a killed owner's lock is free at once, nothing is ever cleaned by hand.

Beside the lock lies a note of its owner, only for the error text: it is never asked which process that is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Container
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from recovery.core.converter import UNREADABLE
from recovery.errors import StoreError, StoreLockedError
from recovery.store.paths import companion, refuse_links, refused


class _Holder(msgspec.Struct, frozen=True):
    pid: int
    host: str


_holders = msgspec.json.Decoder(_Holder)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a store open."""

    pid: int


_PID, _FILE = 4, 5
"""Fields of a line of /proc/locks."""


class OwnerState(str, Enum):
    """Does the process run that had a store open last?"""

    RUNNING = "running"
    NOT_RUNNING = "not running"
    UNKNOWN = "unknown"
    """It ran on another host, or that cannot be seen."""


class OwnerLock:
    """Held from `__init__` to `release()`."""

    def __init__(self, database: Path) -> None:
        """Take the lock of a store's file, without waiting.

        Raises:
            StoreLockedError: another process (or another store of this one) has it; names pid, host and since when.
            StoreError: the lock file is a symbolic link.
            RecoveryPathError: the lock file cannot be made.
        """
        self._path = companion(database, ".lock")
        note = companion(self._path, ".holder")
        refuse_links(self._path, note)
        self._lock = FileLock(self._path, timeout=0, thread_local=False, mode=0o600)
        try:
            self._lock.acquire()
        except Timeout:
            raise _locked_error(database, note) from None
        except OSError as error:
            raise refused(database.parent, error) from error
        try:
            _write(note)
            self._identity = self._found()
        except OSError as error:
            self._lock.release()
            raise refused(database.parent, error) from error

    def assert_held(self, database: Path) -> None:
        """Check that the lock file is still the one we locked: a deleted one lets a second owner in.

        Raises:
            StoreError: it was removed or replaced, or cannot be looked at; this process may no longer write.
        """
        try:
            reason = "" if self._found() == self._identity else "was removed or replaced"
        except FileNotFoundError:
            reason = "was removed or replaced"
        except OSError as error:
            # The file system is gone: nothing can be written there either.
            reason = f"cannot be looked at: {error.strerror}"
        if reason:
            raise StoreError(
                "STORE_WRITE", path=str(database), reason=f"its lock file {self._path.name} {reason}"
            )

    def release(self) -> None:
        """Let the next owner in. The lock file stays: unlinking it would let two owners in."""
        self._lock.release()

    def _found(self) -> tuple[int, int]:
        facts = self._path.lstat()
        return facts.st_dev, facts.st_ino


def owner_of(database: Path) -> Owner | None:
    """The owner of the lock of a store's file right now; None: none on this host. Asks the kernel and takes nothing.

    An owner on another host that shares the directory is not seen.
    """
    try:
        lock_id = _lock_id(companion(database, ".lock"))
    except OSError:
        return None
    pid = (held_locks() or {}).get(lock_id)
    return None if pid is None else Owner(pid=pid)


def found_locked(database: Path) -> StoreLockedError | None:
    """What taking the lock of a store's file would raise right now; None: it is free, as far as `owner_of` sees. Takes nothing."""
    if owner_of(database) is None:
        return None
    return _locked_error(database, companion(companion(database, ".lock"), ".holder"))


def owner_state(database: Path, held: Container[str] | None) -> OwnerState:
    """Does the owner of a store's file run, as far as this host can see? The lock shows that it does, the note beside it where it ran.

    Args:
        database: the file.
        held: what `held_locks` gave.
    """
    path = companion(database, ".lock")
    try:
        lock_id = _lock_id(path)
        holder = _holders.decode(companion(path, ".holder").read_bytes())
    except (OSError, *UNREADABLE):
        return OwnerState.UNKNOWN
    if held is not None and lock_id in held:
        return OwnerState.RUNNING
    ran_here = holder.host == socket.gethostname()
    return OwnerState.NOT_RUNNING if held is not None and ran_here else OwnerState.UNKNOWN


def held_locks(table: Path = Path("/proc/locks")) -> dict[str, int] | None:
    """Files that are locked on this host, as /proc/locks names them, and by which process; None: it cannot be read."""
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    # 1: FLOCK ADVISORY WRITE 4711 fe:00:131 0 EOF (proc_locks(5))
    return {
        fields[_FILE]: int(fields[_PID])
        for fields in map(str.split, lines)
        if len(fields) > _FILE and fields[1] == "FLOCK"
    }


def _lock_id(lock: Path) -> str:
    """How /proc/locks names a file: by the device of its file system, which on btrfs is not the one that stat gives."""
    descriptor = os.open(lock, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        device = _device_of_mount(descriptor) or (os.major(found.st_dev), os.minor(found.st_dev))
    finally:
        os.close(descriptor)
    return f"{device[0]:02x}:{device[1]:02x}:{found.st_ino}"


def _device_of_mount(descriptor: int, process: Path = Path("/proc/self")) -> tuple[int, int] | None:
    """Of the file system that a file lies on; None: this process is not shown that."""
    try:
        [mount] = _fields_after("mnt_id:", process / "fdinfo" / str(descriptor))
        # 27 1 254:0 / / rw,relatime - ext4 /dev/vda rw (proc_pid_mountinfo(5))
        major, minor = _fields_after(mount, process / "mountinfo")[1].split(":")
    except (OSError, ValueError, IndexError):
        return None
    return int(major), int(minor)


def _fields_after(first: str, table: Path) -> list[str]:
    """The others of the line that begins with this one; none if there is no such line."""
    lines = table.read_bytes().decode(errors="replace").split("\n")
    return next((fields[1:] for fields in map(str.split, lines) if fields[:1] == [first]), [])


def _write(note: Path) -> None:
    """Write to another name first, so that nobody ever reads half a note. Not synced: it does not outlive us."""
    draft = companion(note, f".{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(_Holder(pid=os.getpid(), host=socket.gethostname())))
    draft.replace(note)


def _locked_error(database: Path, note: Path) -> StoreLockedError:
    """Name the holder. The note's own time is when it took the lock, by the clock of the file system."""
    try:
        holder = _holders.decode(note.read_bytes())
        since = datetime.fromtimestamp(note.stat().st_mtime, tz=timezone.utc).strftime(
            "%Y-%m-%d %H:%M:%S UTC"
        )
    except (OSError, *UNREADABLE):
        return StoreLockedError(
            path=str(database), pid="unknown", host="an unknown host", since="an unknown time"
        )
    return StoreLockedError(path=str(database), pid=holder.pid, host=holder.host, since=since)
