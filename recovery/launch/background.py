"""The launcher in the background: `--join=False` hands over to it, `recovery stop PATH` ends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from recovery import owner_files, process_identity
from recovery.core.converter import UNREADABLE
from recovery.core.messages import ProcessIdentity
from recovery.errors import UsageError
from recovery.launch import console
from recovery.log import flush_streams

_NOTE = "agent.json"
_LOG = "agent.log"
_STOP_S = 30.0
"""How long an agent may take beyond its grace for its processes."""


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
    noted = _Agent(me.pid, me.create_time(), stop_grace_s=stop_grace_s, identity=process_identity.own())
    with owner_files.new_file(log_dir / _NOTE) as note:
        note.write(msgspec.json.encode(noted))
    code = 1
    try:
        code = work()
    finally:
        (log_dir / _NOTE).unlink(missing_ok=True)
        console.output.finish()
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
        if noted.identity is not None:
            is_it = process_identity.has_ended(noted.identity, noted.pid) is False
        else:
            is_it = process.create_time() == noted.started_s
    except (OSError, *UNREADABLE, psutil.Error):
        return None
    return (process, noted.stop_grace_s) if is_it else None
