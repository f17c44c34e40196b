"""The launcher in the background: `--join=False` hands over to it, `recovery stop PATH` ends it."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from recovery import owner_files, process_identity
from recovery.core.converter import UNREADABLE
from recovery.core.messages import ProcessIdentity
from recovery.errors import LaunchFailedError, SettingError, UsageError
from recovery.launch import console
from recovery.log import flush_streams

_NOTE = "agent.json"
_LOG = "agent.log"
_STOP_S = 30.0
"""How long an agent may take beyond its grace for its processes."""
_BEGUN = "begun"
_STDERR = 2


class _Agent(msgspec.Struct, frozen=True):
    """Which process it is. The number alone could be somebody else's by now."""

    pid: int
    started_s: float
    """By the wall clock, which may be set meanwhile: used only where the last field is left out."""
    stop_grace_s: float = 0.0
    """How long its processes may take to end."""
    identity: ProcessIdentity | None = None
    """No clock that is set moves it. None: the system does not say, or an earlier release has written this."""


_agents = msgspec.json.Decoder(_Agent)


def hand_over(log_dir: Path, work: Callable[[], int], *, stop_grace_s: float) -> int:
    """Do `work` in a process of its own that outlives this terminal. Gives its process id once it has begun.

    Args:
        log_dir: where it notes that it runs.
        work: its exit code is the process's.
        stop_grace_s: how long its processes may take when it is asked to stop.

    Raises:
        SettingError: it cannot write there; nothing was begun.
        LaunchFailedError: it cannot be begun, or has ended at once.
    """
    hears, says = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(hears)
        os.close(says)
        raise _not_begun(str(error.strerror)) from error
    if pid:
        os.close(says)
        _await_begin(log_dir, pid, hears)
        return pid
    os.close(hears)
    code = 1
    try:
        if _detach(log_dir, says, stop_grace_s):
            with contextlib.ExitStack() as behind:
                behind.callback((log_dir / _NOTE).unlink, missing_ok=True)
                code = work()
    except BaseException:  # noqa: BLE001 - nobody else would write it down
        traceback.print_exc()
    finally:
        console.output.finish()
        flush_streams()
        os._exit(code)


def _await_begin(log_dir: Path, pid: int, hears: int) -> None:
    """Until the process has noted itself. Raises as `hand_over`."""
    with os.fdopen(hears, "rb") as stream:
        said = stream.read().decode(errors="replace")
    if said == _BEGUN:
        return
    os.waitpid(pid, 0)
    if not said:
        reason = "its process has ended before it began"
        raise _not_begun(reason)
    raise SettingError(
        "SETTING_RANGE",
        field="--log_dir",
        value=log_dir,
        rule=f"cannot be written ({said}), so nothing was started",
        next_step="Give a directory that this user may write, on a disk that is not full.",
    )


def _not_begun(reason: str) -> LaunchFailedError:
    next_step = "Start it again, or with --join=True."
    return LaunchFailedError(process="the launcher in the background", reason=reason, next_step=next_step)


def _detach(log_dir: Path, says: int, stop_grace_s: float) -> bool:
    """Leave the terminal, and note where this process is found. What it says is that it has begun, or why it cannot."""
    os.setsid()
    me = psutil.Process()
    noted = _Agent(me.pid, me.create_time(), stop_grace_s=stop_grace_s, identity=process_identity.own())
    try:
        log = owner_files.at_its_end(log_dir / _LOG)
        with owner_files.new_file(log_dir / _NOTE) as note:
            note.write(msgspec.json.encode(noted))
    except OSError as error:
        os.write(says, f"{error.filename or log_dir / _NOTE}: {error.strerror}".encode(errors="replace"))
        return False
    _close_inherited()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, to in ((nothing, 0), (log.fileno(), 1), (log.fileno(), 2)):
        os.dup2(descriptor, to)
    os.write(says, _BEGUN.encode())
    os.close(says)
    return True


def _close_inherited() -> None:
    """What the shell had open: whoever waits for the end of a pipe, or for a lock, would wait for this process. Its own end with a program."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names are numbers here
        with contextlib.suppress(OSError):
            if descriptor > _STDERR and os.get_inheritable(descriptor):
                os.close(descriptor)


def stop(log_dir: Path) -> None:
    """Ask the agent of this directory to end its job, and wait until it has.

    Raises:
        UsageError: none runs there, or it does not end.
    """
    found = _agent_of(log_dir)
    if found is None:
        raise UsageError(
            field=str(log_dir),
            reason="no launcher runs in the background there",
            next_step="Name the --log_dir that `recovery msrun` was given.",
        )
    process, patience_s = found[0], found[1] + _STOP_S
    process.terminate()
    try:
        process.wait(patience_s)
    except psutil.TimeoutExpired as error:
        raise UsageError(
            field=str(log_dir),
            reason=f"its launcher (pid {process.pid}) has not ended within {patience_s:.0f} s",
            next_step=f"Look at {log_dir / _LOG}; kill -9 {process.pid} ends it and its processes at once.",
        ) from error


def _agent_of(log_dir: Path) -> tuple[psutil.Process, float] | None:
    """The living one that noted itself there, and how long its processes may take to end."""
    try:
        noted = _agents.decode((log_dir / _NOTE).read_bytes())
        process = psutil.Process(noted.pid)
        if noted.identity is not None:
            is_it = process_identity.has_ended(noted.identity, noted.pid) is False
        else:
            is_it = process.create_time() == noted.started_s
    except (OSError, *UNREADABLE, psutil.Error):
        return None
    return (process, noted.stop_grace_s) if is_it else None
