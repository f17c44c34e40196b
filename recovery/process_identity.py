"""Which process a process id means, and whether that very process has ended. Read from the kernel, nothing is kept.

A process id is used again after a while, means another process after the next boot, and counts in its pid namespace only. So an
identity says all of it, and only a process under the same kernel and in the same pid namespace can prove anything by it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from recovery import clock
from recovery.core.messages import ProcessIdentity
from recovery.readable import is_readable

_PROC = Path("/proc")
_ENDED_STATES = ("Z", "X")
_PID_MAX = 2**31 - 1
"""The largest that the kernel takes; what a peer says may be larger."""


class _Stat(NamedTuple):
    """What is read of /proc/PID/stat."""

    state: str
    threads: int
    start_ticks: int


def own() -> ProcessIdentity | None:
    """Tell which process this is; None: this system does not say."""
    return _identity(_PROC / "self")


def of(pid: int) -> ProcessIdentity | None:
    """Tell which process of the caller's own pid namespace this is, such as a child not yet waited for; None: unknown."""
    return _identity(_PROC / str(pid)) if _proc_is_ours() else None


def has_ended(identity: ProcessIdentity, pid: int) -> bool | None:
    """Has this very process ended?

    Args:
        identity: as the process said it of itself, or as `of` found it.
        pid: its process id in its own pid namespace.

    Returns:
        True: it has, for certain. False: it runs (a program that replaced itself by exec is the same process). None: nothing can be
        proven from here: another boot, another pid namespace, or this system does not say.
    """
    if not identity.boot_id or identity.boot_id != clock.boot_id():
        return None
    if not 0 < pid <= _PID_MAX or identity.pid_namespace != _pid_namespace():
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        # None is left, the kernel knows none, or the number means a thread now.
        return _has_ended_by_proc(identity, pid)
    try:
        # The start is read while the descriptor holds the process, so that both speak of the same one or it has ended.
        return is_readable(descriptor) or _is_another(identity, pid)
    finally:
        os.close(descriptor)


def _has_ended_by_proc(identity: ProcessIdentity, pid: int) -> bool | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # Somebody else's, so there is one.
        pass
    stat = _stat(_PROC / str(pid)) if _proc_is_ours() else None
    if stat is None:
        return None
    # The first thread may be over while others of the process go on.
    is_zombie = stat.state in _ENDED_STATES and stat.threads <= 1
    return is_zombie or stat.start_ticks != identity.start_ticks


def _is_another(identity: ProcessIdentity, pid: int) -> bool | None:
    stat = _stat(_PROC / str(pid)) if _proc_is_ours() else None
    return None if stat is None else stat.start_ticks != identity.start_ticks


def _identity(directory: Path) -> ProcessIdentity | None:
    stat, namespace, boot_id = _stat(directory), _pid_namespace(), clock.boot_id()
    if stat is None or not namespace or not boot_id:
        return None
    return ProcessIdentity(boot_id=boot_id, pid_namespace=namespace, start_ticks=stat.start_ticks)


def _pid_namespace() -> int:
    """Inode of this process's pid namespace; 0: unknown."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _proc_is_ours() -> bool:
    """Does /proc number processes as this process's own namespace does? A container may show its host's."""
    try:
        return (_PROC / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return False


def _stat(directory: Path) -> _Stat | None:
    """Parse stat; None: there is none, or it is not ours to read. The program's name in it may hold spaces and parentheses."""
    try:
        fields = (directory / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _Stat(state=fields[0], threads=int(fields[17]), start_ticks=int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
