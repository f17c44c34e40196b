"""Under which conditions a process runs that its program does not set: the table of what a rank's first process and its successors share.

Noted once, at the first start, and restored at each later one, however that begins: spawned, forked, or by exec in place. Bits depend on some of it
(libraries count processors when they are loaded), whether a start succeeds at all on others. What cannot be restored is given with its reason.

Environment and command line are whole arguments of each start, so they are not rows. Threads are: by processors, and OMP_NUM_THREADS.

Only the standard library is imported: pre_exec.py loads this file by itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

Noted = dict[str, Any]
"""By name of the row: its value, of what JSON and msgpack have."""

_SIG_DFL, _SIG_IGN = 0, 1
"""Of signal.h."""
_FIRST_REAL_TIME = 32
"""Of asm-generic/signal.h."""
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 2, 36
"""Of linux/prctl.h."""
_OF_THREADS = range(_FIRST_REAL_TIME, signal.SIGRTMIN)
"""The C library's own, which no program may set. glibc's posix_spawn, and so GNU make, begins programs that ignore them, until their first thread."""


class Condition(NamedTuple):
    """One row."""

    name: str
    read: Callable[[], Any]
    """Raises OSError where the system does not say."""
    restore: Callable[[Any], None]
    """Raises OSError or ValueError where the system refuses. Usable from any thread."""


def _status(field: str) -> str:
    with open("/proc/thread-self/status", encoding="utf-8", errors="replace") as status:  # noqa: PTH123 - see the head
        return dict(line.split(":", 1) for line in status if ":" in line)[field].strip()


def _signals(field: str) -> list[int]:
    bits = int(_status(field), 16)
    return [
        number for number in range(1, signal.NSIG) if bits >> (number - 1) & 1 and number not in _OF_THREADS
    ]


def _ignored() -> list[int]:
    """All but that of a child's end: see `wait_for_children`."""
    return [number for number in _signals("SigIgn") if number != signal.SIGCHLD]


def _ignore(wanted: Iterable[int]) -> None:
    """These and no others. What has a handler keeps it: an exec drops it anyway."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted, present = set(wanted), set(_ignored())
    for number in sorted(wanted ^ present):
        # Python's own function works in the main thread only.
        libc.signal(number, ctypes.c_void_p(_SIG_IGN if number in wanted else _SIG_DFL))


def _block(wanted: Iterable[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted)


_LIMITS = {name: getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")}
# Another name of RLIMIT_NOFILE.
del _LIMITS["RLIMIT_OFILE"]


def _limits() -> dict[str, list[int]]:
    return {name: list(resource.getrlimit(number)) for name, number in _LIMITS.items()}


def _set_limits(wanted: Mapping[str, list[int]]) -> None:
    refused = None
    for name, (soft, hard) in wanted.items():
        present = resource.getrlimit(_LIMITS[name])
        if present == (soft, hard):
            continue
        try:
            resource.setrlimit(_LIMITS[name], (soft, hard))
        except (OSError, ValueError) as error:
            # A hard limit that was lowered stays so without a privilege: as near as it goes.
            refused = error
            resource.setrlimit(_LIMITS[name], (_least(soft, present[1]), present[1]))
    if refused is not None:
        raise refused


def _least(*limits: int) -> int:
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=resource.RLIM_INFINITY)


def _scheduling() -> list[int]:
    return [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority]


def _set_mode_mask(wanted: int) -> None:
    os.umask(wanted)


def _out_of_memory_score() -> str:
    with open("/proc/self/oom_score_adj", encoding="utf-8") as score:  # noqa: PTH123 - see the head
        return score.read().strip()


def _set_out_of_memory_score(wanted: str) -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as score:  # noqa: PTH123 - see the head
        score.write(wanted)


def _signal_of_parents_death() -> int:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value


def _set_signal_of_parents_death(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


PARENTS_DEATH = "signal of the parent's death"
TABLE = (
    # What restores a row may open a file, so the limits are first.
    Condition("limits", _limits, _set_limits),
    Condition("directory", os.getcwd, os.chdir),
    Condition(
        "processors",
        lambda: sorted(os.sched_getaffinity(0)),
        lambda wanted: os.sched_setaffinity(0, wanted),
    ),
    Condition(
        "niceness",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda wanted: os.setpriority(os.PRIO_PROCESS, 0, wanted),
    ),
    Condition(
        "scheduling",
        _scheduling,
        lambda wanted: os.sched_setscheduler(0, wanted[0], os.sched_param(wanted[1])),
    ),
    Condition("file mode mask", lambda: int(_status("Umask"), 8), _set_mode_mask),
    Condition("blocked signals", lambda: _signals("SigBlk"), _block),
    Condition("ignored signals", _ignored, _ignore),
    Condition("out of memory score", _out_of_memory_score, _set_out_of_memory_score),
    # Of a thread: another one that becomes the next program by exec would leave it behind, tied to nobody.
    Condition(PARENTS_DEATH, _signal_of_parents_death, _set_signal_of_parents_death),
)


class Difference(NamedTuple):
    """A row that is not what was noted."""

    name: str
    noted: Any
    present: Any
    error: OSError | None = None
    """Why it was not restored; None: nobody has tried."""

    @property
    def text(self) -> str:
        """For people."""
        noted, present = self.noted, self.present
        if isinstance(noted, dict) and isinstance(present, dict):
            names = [name for name in noted if noted[name] != present.get(name)]
            noted, present = ({name: values.get(name) for name in names} for values in (noted, present))
        why = f" ({self.error.strerror})" if self.error else ""
        return f"{self.name}: {present}, {noted} at first{why}"


def note() -> Noted:
    """The present conditions of this process; a row that the system does not tell of is left out."""
    noted = {condition.name: _read(condition) for condition in TABLE}
    return {name: value for name, value in noted.items() if value is not None}


def differing(noted: Mapping[str, Any]) -> list[Difference]:
    """Which rows are not as they were noted."""
    present = note()
    return [
        Difference(name, noted[name], value)
        for name, value in present.items()
        if noted.get(name, value) != value
    ]


def restore(noted: Mapping[str, Any], leave: Collection[str] = ()) -> list[Difference]:
    """Make this process's conditions what was noted. Gives what could not be restored.

    Args:
        noted: as `note` gives it.
        leave: rows that stay as they are.
    """
    failed = []
    for condition in TABLE:
        if condition.name not in noted or condition.name in leave:
            continue
        present = _read(condition)
        if present == noted[condition.name]:
            continue
        error = _refusal(condition, noted[condition.name])
        if error is not None:
            failed.append(Difference(condition.name, noted[condition.name], present, error))
    return failed


def _refusal(condition: Condition, wanted: Any) -> OSError | None:
    """Restore it. Gives why that was refused; None: it was not."""
    try:
        condition.restore(wanted)
    except OSError as error:
        return error
    except ValueError as error:
        # What Python makes of a limit that may not be raised.
        return OSError(errno.EPERM, str(error))
    # The kernel leaves processors out without a word, for one, that the process may not use any more.
    return None if _read(condition) == wanted else OSError(errno.EPERM, "the system does not give all of it")


def tie_to(parent: int) -> None:
    """Let the kernel kill this process when its parent dies.

    Args:
        parent: process id of it.
    """
    _set_signal_of_parents_death(signal.SIGKILL)
    # It may have died before the kernel was asked.
    if os.getppid() != parent:
        os._exit(0)


def wait_for_children() -> None:
    """Let this process learn how its children end, from the main thread.

    A parent that ignores SIGCHLD hands that on to its children, and the kernel keeps no status for who ignores it.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def take_in_orphans(does: bool = True) -> None:
    """Does the kernel give this process the orphans among its descendants?"""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(does))


def _read(condition: Condition) -> Any:
    try:
        return condition.read()
    except (OSError, KeyError):
        return None
