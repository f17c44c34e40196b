"""The memory tier: a directory on tmpfs for each job, whose checkpoints outlast their process and not their host.

Memory that nobody gives back is worse than a file: each process of the job holds a lock on its directory, and where nobody holds it
any more the directory is cleared up, by the job's launcher or by the next job of the same user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from recovery import clock
from recovery.checkpoint import free_memory
from recovery.checkpoint.durable_files import reason_of
from recovery.core.converter import UNREADABLE
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX

_logger = logging.getLogger("recovery.checkpoint")

OWNER_FILE = "owner.json"
GRACE_MS = 600_000
"""For how long the directory of a job that no process here holds is left alone, since its processes may be about to be started again.
Rejoin windows, backoffs and imports take a minute or two; ten times as long would keep a host's memory from the next job."""

_OWNER_BYTES_MAX = 65_536


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a directory is, as its file says."""

    job: str
    recovery_path: str
    boot: str
    """Of which boot `used_ms` is; empty: unknown."""
    used_ms: int
    """When it was used last, on the clock of the boot."""


_owner = msgspec.json.Decoder(Owner)


class MemoryHome:
    """A job's directory in memory. While a process has one of these, nobody clears the directory up."""

    def __init__(self, base: Path, job: str, recovery_path: Path) -> None:
        """Make the job's directory on a tmpfs where it is absent, and hold it. Its launcher knows the job by `recovery_path`.

        Raises:
            OSError: it cannot be made, or is another user's.
        """
        self.root = base / f"{MEMORY_DIRECTORY_PREFIX}{os.geteuid()}-{job}"
        self._owner = Owner(job=job, recovery_path=str(recovery_path), boot=clock.boot_id(), used_ms=0)
        self._descriptor = _hold(self.root)
        self.note_use()

    def directory(self, run: int, rank: int) -> Path:
        """Where a rank's checkpoints of a run lie; made if absent.

        The rank names it, not the node: the next holder of the rank on this host finds them.

        Raises:
            OSError: it cannot be made.
        """
        directory = self.root / f"run-{run}-rank-{rank}"
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    def note_use(self) -> None:
        """Say that the job goes on here."""
        content = msgspec.json.encode(msgspec.structs.replace(self._owner, used_ms=clock.boot_ms()))
        # Ends of lines end what a longer one has left.
        os.pwrite(self._descriptor, content + b"\n", 0)
        os.ftruncate(self._descriptor, len(content) + 1)

    def descriptors(self) -> tuple[int, ...]:
        """What holds the directory: a forked child closes it, or the job would seem to live as long as the child."""
        return (self._descriptor,) if self._descriptor >= 0 else ()

    def leave(self, *, job_is_over: bool) -> None:
        """Let go of the directory. What the job has left is removed if it is over, by the last of its processes here."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        if job_is_over:
            _clear(self.root, lambda owner: True)


def clear_up(base: Path, *, ended: Path | None = None) -> None:
    """Remove what jobs of this user have left on a tmpfs. What a living process holds stays, and what is another user's.

    `ended` is the recovery path of a job that is known to be over here; of others it is known when they were of another boot, or nobody has
    used their directory for `GRACE_MS`.
    """
    begins = f"{MEMORY_DIRECTORY_PREFIX}{os.geteuid()}-"
    try:
        roots = sorted(entry for entry in base.iterdir() if entry.name.startswith(begins))
    except OSError as error:
        _logger.debug("%s cannot be listed: %s", base, reason_of(error))
        return
    for root in roots:
        _clear(root, lambda owner: _is_over(owner, ended))


def free_bytes(base: Path) -> int:
    """Say how many bytes could go to a tmpfs before it, the host's memory or this process's cgroup is full."""
    free = free_memory.free_bytes()
    with contextlib.suppress(OSError):
        found = os.statvfs(base)
        free = min(free, found.f_bavail * found.f_frsize)
    return free


def _hold(root: Path) -> int:
    while True:
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
        _check_owner(root)
        try:
            descriptor = os.open(
                root / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except FileNotFoundError:
            # It was cleared up in between.
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_there(root / OWNER_FILE, descriptor):
            return descriptor
        os.close(descriptor)


def _check_owner(root: Path) -> None:
    """Everybody may write to a tmpfs: what waits there under the name of a job's directory may be a trap."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "it is not a directory of this user alone")


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clear(root: Path, is_over: Callable[[Owner | None], bool]) -> None:
    """Remove a directory that nobody holds."""
    try:
        _check_owner(root)
        with _held_alone(root) as owner:
            if is_over(owner):
                _logger.info("event=memory_cleared path=%s", root)
                shutil.rmtree(root)
    except FileNotFoundError:
        # Somebody else clears it up too.
        return
    except BlockingIOError:
        # A process of the job holds it.
        return
    except OSError as error:
        _logger.warning("event=memory_not_cleared path=%s reason=%r", root, reason_of(error))


@contextlib.contextmanager
def _held_alone(root: Path) -> Iterator[Owner | None]:
    """What the owner's file says, while nobody else can hold the directory.

    Raises:
        BlockingIOError: somebody does.
        OSError: it cannot be looked at, or is gone.
    """
    # Without its file it was left by a process that died while making it or clearing it up; the lock needs one.
    descriptor = os.open(root / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield _owner.decode(os.pread(descriptor, _OWNER_BYTES_MAX, 0))
        except UNREADABLE:
            yield None
    finally:
        os.close(descriptor)


def _is_over(owner: Owner | None, ended: Path | None) -> bool:
    """Is a job over whose directory nobody holds? One that nobody can name has no process to come back."""
    if owner is None or not owner.boot or owner.boot != clock.boot_id():
        return True
    if ended is not None and owner.recovery_path == str(ended):
        return True
    return clock.boot_ms() - owner.used_ms > GRACE_MS
