"""What must not outlive this process: in the children that it forks, and in the program that replaces it.

A forked child (a DataLoader's worker) inherits every descriptor. While it holds a socket, the kernel does not close the connection of a
killed parent, and peers keep waiting; while it holds a lock, the next incarnation does not get it. So a child closes what is registered
here, first thing after the fork.

exec in place is the last resort when the main thread does not come back: the same program starts again in this process, which keeps its
pid, rank and incarnation. What the program before it had opened or started would never be ended by the one that follows.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from recovery import end_note, log, process_conditions
from recovery.core.ids import ResumeToken
from recovery.core.worker.stimuli import Hangs
from recovery.errors import ProcessError

_logger = logging.getLogger("recovery.worker")

TOKEN_VARIABLE = "MS_RESUME_TOKEN"  # noqa: S105 - the name of a variable
"""Carries the resume token over the exec. Taken out of the environment at start, so that no child sees it."""

HANGS_VARIABLE = "MS_RESUME_HANGS"
"""`COUNT:STEP`, beside the token: see `Hangs`."""

_start_conditions = process_conditions.note()
"""The directory where the command line was typed among them: relative names in it mean this one. As long as nobody changed them before
importing us."""

_start_environment = dict(os.environ)  # noqa: TID251 - handed on, not read
"""What the process was started with: what the program or a framework has set since is set again by the same lines."""

_STDERR = 2
_PASSES_MAX = 3
"""The threads of a framework may open one more while the others are marked; they do not open any three times in a millisecond."""

_owners: list[Callable[[], Iterable[int]]] = []
"""Each gives the descriptors that a forked child must close."""

_endings: list[Callable[[], None]] = []
"""Each ends what the next program would not know."""


# --- the children -------------------------------------------------------------------------------------------------------


def close_in_children(owner: Callable[[], Iterable[int]]) -> None:
    """Register descriptors that forked children must close.

    Args:
        owner: gives the descriptors as they are at the moment of the fork.
    """
    if not _owners:
        os.register_at_fork(after_in_child=_close_in_child)
    _owners.append(owner)


def _close_in_child() -> None:
    for owner in _owners:
        for descriptor in owner():
            with contextlib.suppress(OSError):
                os.close(descriptor)
    _owners.clear()


def descriptors_of(path: Path) -> list[int]:
    """The open descriptors of a file, by whatever name it was opened, for `close_in_children`."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for descriptor in _open_descriptors():
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), wanted):
                    found.append(descriptor)
    return found


# --- the program that follows -------------------------------------------------------------------------------------------


def end_before_exec(end: Callable[[], None]) -> None:
    """Register what must be ended before another program takes this process over: a child that the next one would not know."""
    _endings.append(end)


def note_start() -> None:
    """Take the conditions and the environment of now for those of the start: this process was forked with this module imported."""
    global _start_conditions, _start_environment  # noqa: PLW0603 - one per process, as what they say
    _start_conditions = process_conditions.note()
    _start_environment = dict(os.environ)  # noqa: TID251 - handed on, not read


def start_environment() -> dict[str, str]:
    """What this process was started with, or forked for: imports may have set more since."""
    return dict(_start_environment)


def replace_process(token: ResumeToken, hangs: Hangs) -> NoReturn:
    """Start the same program in this process, from whichever thread this is.

    Children of `multiprocessing`, and what `end_before_exec` knows, are ended first. The program is `sys.orig_argv`, so `python train.py`,
    `python -m pytest train.py` and `pytest train.py` all come back as they were started, in the directory they were started in. Where
    that fails the process ends: its main thread would hang on with its rank.

    Args:
        token: makes the next program the same incarnation.
        hangs: how often in a row it was replaced because it hung.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for end in _endings:
        end()
    log.flush_streams()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    environment = {**_start_environment, TOKEN_VARIABLE: token, HANGS_VARIABLE: f"{hangs.count}:{hangs.step}"}
    try:
        _restore_conditions()
        close_all_at_exec()
        os.execve(sys.executable, arguments, environment)  # noqa: S606 - no shell: the process replaces itself
    except OSError as failure:
        error = ProcessError(
            "PROCESS_NOT_REPLACED", path=failure.filename or sys.executable, reason=failure.strerror
        )
        _logger.error("event=exit code=%d %s", error.exit_code, error)  # noqa: TRY400 - one clear line, as every end has
        end_note.note_exit(error.exit_code)
        os._exit(error.exit_code)


def _restore_conditions() -> None:
    """As at the start: an exec hands on what the program has made of them.

    Raises:
        OSError: the directory is gone, and with it what relative names in the command line mean.
    """
    for left in process_conditions.restore(_start_conditions):
        if left.name == "directory" and left.error is not None:
            raise left.error
        _logger.warning("event=condition_not_restored %s", left.text)


def close_all_at_exec() -> None:
    """Let exec close everything except stdin, stdout and stderr: a leaked socket keeps peers waiting.

    Closing them here would end the process instead: gloo's threads still live, and one whose epoll descriptor is gone aborts.
    The kernel ends all other threads before it closes a descriptor.
    """
    for _ in range(_PASSES_MAX):
        inheritable = [descriptor for descriptor in _open_descriptors() if _is_inheritable(descriptor)]
        for descriptor in inheritable:
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)
        if not inheritable:
            return


def _open_descriptors() -> Iterable[int]:
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are numbers here
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return range(3, soft)
    return [int(name) for name in names if int(name) > _STDERR]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False


def take_token() -> ResumeToken | None:
    """The token that the program before the exec left, taken out of the environment."""
    token = os.environ.pop(TOKEN_VARIABLE, None)  # noqa: TID251 - see TOKEN_VARIABLE
    return ResumeToken(token) if token else None


def take_hangs() -> Hangs:
    """What the program before the exec counted, taken out of the environment; nothing where nobody did."""
    counted = os.environ.pop(HANGS_VARIABLE, "")  # noqa: TID251 - see TOKEN_VARIABLE
    count, _, step = counted.partition(":")
    return Hangs(int(count), int(step)) if count.isdecimal() and step.isdecimal() else Hangs()
