"""The launcher in the background: `--join=False` hands over to it, `recovery stop PATH` ends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from recovery import owner_files
from recovery.core.converter import UNREADABLE
from recovery.errors import UsageError
from recovery.launch import console
from recovery.log import flush_streams

_NOTE = "agent.json"
_LOG = "agent.log"
_STOP_S = 30.0
"""How long an agent may take beyond its grace for its processes."""

_START_TIME = 19
"""Position of the start time behind the name in /proc/<pid>/stat: field 22 of proc_pid_stat(5), and the name is field 2."""


class _Agent(msgspec.Struct, frozen=True):
    """Which process it is. The number alone could be somebody else's by now."""

    pid: int
    started_s: float
    """By the wall clock, which may be set meanwhile: used only where an earlier release has left the next field out."""
    stop_grace_s: float = 0.0
    """How long its processes may take to end."""
    identity: str = msgspec.field(name="life", default="")
    """Which start of the machine, and when since then in the kernel's ticks: no clock that is set moves it."""


_agents = msgspec.json.Decoder(_Agent)


def hand_over(log_dir: Path, work: Callable[[], int], *, stop_grace_s: float) -> int:
    """Do `work` in a process of its own that outlives this terminal. Gives its process id at once.

    Args:
        log_dir: where it notes that it runs.
        work: its exit code is the process's.
        stop_grace_s: how long its processes may take when it is asked to stop.
    """
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    log = os.open(log_dir / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, to in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, to)
    me = psutil.Process()
    noted = _Agent(me.pid, me.create_time(), stop_grace_s=stop_grace_s, identity=_identity_of(me.pid))
    with owner_files.new_file(log_dir / _NOTE) as note:
        note.write(msgspec.json.encode(noted))
    code = 1
    try:
        code = work()
    finally:
        (log_dir / _NOTE).unlink(missing_ok=True)
        console.finish()
        flush_streams()
        os._exit(code)


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
        if noted.identity:
            is_it = _identity_of(noted.pid) == noted.identity
        else:
            is_it = process.create_time() == noted.started_s
    except (OSError, *UNREADABLE, psutil.Error):
        return None
    return (process, noted.stop_grace_s) if is_it else None


def _identity_of(pid: int) -> str:
    """What no other process of this machine has had or will have, even under the same number.

    Raises:
        OSError: there is no such process.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return f"{boot} {stat.rpartition(')')[2].split()[_START_TIME]}"
