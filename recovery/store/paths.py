"""Where the stores lie, and what stands there before SQLite sees it: the recovery path, and what has the name of a store."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import tempfile
from pathlib import Path

from recovery import file_systems
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.errors import RecoveryPathError, StoreError

APPLICATION_ID = 0x4D535243
"""Stands in the header of every file of ours ("MSRC"), so that another program's database is never written to."""

RESET = "reset-"
"""How the name begins of a directory in which a person has archived a job."""

_MAGIC = b"SQLite format 3\0"
_TRIAL_BYTES = 1 << 20
"""As much as a store writes before it folds its log: a smaller one could still fit where a batch does not."""
_FILES = 8
"""As many as SQLite opens of a store at once, and a few for its -wal's folding. It has closed them when it says that it could not."""
_HEADER_BYTES = 100
_APPLICATION_ID_AT = 68

_FREE_SPACE = "Free space on that file system."
_NEXT_STEPS = {
    errno.ENAMETOOLONG: "Choose a shorter path.",
    errno.EEXIST: "Choose a path whose parents are directories.",
    errno.ENOTDIR: "Choose a path whose parents are directories.",
    **file_systems.NEXT_STEPS,
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: f"{_FREE_SPACE[:-1]}, or have this user's quota raised.",
}


def scheduler_path(recovery_path: Path) -> Path:
    """Name the scheduler's file."""
    return recovery_path / "scheduler.db"


def worker_path(recovery_path: Path, node_id: str) -> Path:
    """Name a worker's file. The id was checked where it came in; here it must not lead out of the directory."""
    assert re.match(NODE_ID_PATTERN, node_id), f"{node_id!r} is no node id, so it may not name a file"
    return recovery_path / "workers" / f"{node_id}.db"


def prepare_directory(path: Path) -> None:
    """Make the directory (0700) with its parents if it is absent; refuse one that cannot serve.

    Raises:
        RecoveryPathError: a file stands there, it cannot be made or written, it is another user's, every user may write there, or no store can
            be kept there (NFS, FUSE).
    """
    try:
        if not path.exists():
            _make_parents(path.parent)
            path.mkdir(mode=0o700, exist_ok=True)
            fsync_directory(path.parent)
        facts = path.stat()
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise refused(path, error) from error
    me = os.geteuid()
    if not stat.S_ISDIR(facts.st_mode):
        raise RecoveryPathError(path=str(path), reason="is not a directory", next_step="Choose a directory.")
    if read_only:
        raise refused(path, OSError(errno.EROFS, os.strerror(errno.EROFS)))
    if me not in (0, facts.st_uid):
        reason = f"belongs to user {facts.st_uid} and this process runs as user {me}"
        raise RecoveryPathError(
            path=str(path), reason=reason, next_step="Run as that user, or choose another directory."
        )
    if facts.st_mode & stat.S_IWOTH:
        # A user who may write there may put another store, or another token, in the place of ours.
        raise RecoveryPathError(
            path=str(path),
            reason=f"may be written by every user (mode {stat.S_IMODE(facts.st_mode):04o})",
            next_step=f"Run chmod o-w {path}, or name a directory below it, which is made for this user alone."
            " Where chmod changes nothing, its file system keeps no modes: choose a directory on a local disk.",
        )
    if why_not := file_systems.why_no_store(path):
        raise RecoveryPathError(
            path=str(path),
            reason=why_not,
            next_step="Name a directory on a local disk of each host in MS_RECOVERY_PATH, and give all hosts of the job one secret in MS_JOB_TOKEN."
            " A job whose state is here already goes on from a copy of this directory.",
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise refused(path, OSError(errno.EACCES, os.strerror(errno.EACCES)))


def _make_parents(path: Path) -> None:
    """Make a directory and those above it, each durable in the one above: the newest name is no safer than the oldest."""
    if not path.exists():
        _make_parents(path.parent)
        path.mkdir(exist_ok=True)
        fsync_directory(path.parent)


def refused(path: Path, error: OSError) -> RecoveryPathError:
    """Word a failure of the file system as an error of the recovery path."""
    fallback = "Give this user the right to write there, or choose another directory."
    next_step = _NEXT_STEPS.get(error.errno or 0, fallback)
    reason = f"cannot be used ({file_systems.words_of(error, path)})"
    return RecoveryPathError(path=str(path), reason=reason, next_step=next_step)


def lacking(path: Path, lacks: str) -> RecoveryPathError:
    """Word that the directory's file system cannot do what the job's secret needs."""
    next_step = "Choose a directory on a local disk (ext4, xfs, btrfs, tmpfs), or give all processes of the job one secret in MS_JOB_TOKEN."
    return RecoveryPathError(
        path=str(path), reason=f"cannot keep the job's token: {lacks}", next_step=next_step
    )


def refusal(path: Path) -> OSError | None:
    """What the system refuses a store's file now; None: nothing is found. By tries of our own, as SQLite does not say which error it met."""
    opened: list[int] = []
    try:
        while len(opened) < _FILES:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        largest = max(_size(path.with_name(path.name + suffix)) for suffix in ("", "-wal", "-shm"))
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and largest + _TRIAL_BYTES > limit:
            return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        with tempfile.TemporaryFile(dir=path.parent) as trial:
            trial.write(bytes(_TRIAL_BYTES))
    except OSError as error:
        return error
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def absent(path: Path) -> RecoveryPathError:
    """Word that no store lies at its name, and what a person has archived beside it."""
    reason, step = f"holds no {path.name}", "Name the directory that the job was started with."
    newest = max(path.parent.glob(f"{RESET}*"), default=None)
    if newest is not None and os.path.lexists(scheduler_path(newest)):
        reason += f": its job was archived as {newest.name}"
        step = f"Start the next job, or look at the archived one: `recovery status {newest}`."
    elif newest is not None:
        reason += f": the stores of its job's workers on this host were archived as {newest.name}, and the scheduler's was not there"
        step = f"Look on the host of the scheduler; where it is says `recovery status {newest}`."
    return RecoveryPathError(path=str(path.parent), reason=reason, next_step=step)


def companion(path: Path, suffix: str) -> Path:
    """Name a file that SQLite or we keep beside the store: -wal, -shm, .lock."""
    return path.with_name(path.name + suffix)


def facts_of(*files: Path) -> tuple[object, ...]:
    """What tells each file from another one, or from itself before a write; None: it is not there."""
    facts: list[object] = []
    for file in files:
        try:
            found = file.stat()
        except FileNotFoundError:
            facts.append(None)
        else:
            facts.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(facts)


def refuse_links(*paths: Path) -> None:
    """SQLite follows a link at a store's name, and so would write into a file that is not ours.

    Raises:
        StoreError: one of the paths is a symbolic link.
    """
    for path in paths:
        if path.is_symlink():
            raise StoreError("STORE_NOT_OURS", path=str(path), reason="it is a symbolic link")


def is_there(path: Path) -> bool:
    """Look at what lies at a store's name, without opening it in SQLite: that could already change it.

    Returns:
        Whether a file of ours is there; False when nothing is.

    Raises:
        StoreError: something else is there; an empty or cut file, or a -wal without its file. Our files are complete when they get their name.
    """
    wal = companion(path, "-wal")
    refuse_links(path, wal, companion(path, "-shm"))
    try:
        facts = path.lstat()
    except FileNotFoundError:
        if wal.exists():
            raise StoreError(
                "STORE_CORRUPT", path=str(path), reason=f"it is missing, but {wal.name} is there"
            ) from None
        return False
    except OSError as error:
        raise refused(path.parent, error) from error
    if not stat.S_ISREG(facts.st_mode):
        raise StoreError("STORE_NOT_OURS", path=str(path), reason="it is not a regular file")
    _check_header(path)
    return True


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise refused(path.parent, error) from error
    if not header:
        raise StoreError("STORE_CORRUPT", path=str(path), reason="it is empty")
    if not header.startswith(_MAGIC):
        raise StoreError("STORE_NOT_OURS", path=str(path), reason="it is not an SQLite database")
    if len(header) < _HEADER_BYTES:
        raise StoreError("STORE_CORRUPT", path=str(path), reason=f"it ends after {len(header)} bytes")
    if int.from_bytes(header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4], "big") != APPLICATION_ID:
        raise StoreError("STORE_NOT_OURS", path=str(path), reason="it is a database of another program")


def fsync_directory(path: Path) -> None:
    """Make names in the directory durable: without it a power cut loses a file that itself was synced."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file_systems.sync_names(descriptor)
    finally:
        os.close(descriptor)
