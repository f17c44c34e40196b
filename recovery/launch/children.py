"""Child processes of a launcher: how they are spawned, and how its loop waits for them and ends them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from recovery.launch.child_process import POLL_S, ChildProcess

_PRE_EXEC = str(Path(__file__).with_name("pre_exec.py"))


def tied(command: Sequence[str], conditions: Mapping[str, Any] | None = None) -> list[str]:
    """The command behind a program that ties the child to this process, takes up its conditions, then becomes the command.

    Args:
        command: what the child is to run.
        conditions: that it runs under (recovery.process_conditions); what is not named is as in this process.
    """
    return [sys.executable, "-I", "-S", _PRE_EXEC, str(os.getpid()), json.dumps(conditions or {}), *command]


def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    conditions: Mapping[str, Any],
    log: IO[bytes] | int | None = None,
    stdin: int | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> ChildProcess:
    """Start a process in a session of its own, which the kernel ends with this one. From the main thread.

    Args:
        command: what it runs.
        environment: all of it.
        conditions: that it runs under (recovery.process_conditions).
        log: where its output goes; None: where this process's goes.
        stdin: what it reads; None: what this process does.
        pass_fds: descriptors that it keeps.

    Raises:
        OSError: it could not be started; nothing is left of it.
    """
    started = subprocess.Popen(  # noqa: S603 - the command of the person who started the job, or our own
        tied(command, conditions),
        env=dict(environment),
        stdin=stdin,
        stdout=log,
        stderr=log,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    # Else the module itself would wait for it, before the next start.
    started.returncode = 0
    return ChildProcess(started.pid, is_forked=False)


async def await_end(child: ChildProcess) -> int:
    """Wait for its end, without a thread; by polling where the system has nothing to wait with. Gives its status."""
    descriptor = child.descriptor()
    if descriptor is None or not await _has_become_readable(descriptor):
        while not child.has_ended:  # noqa: ASYNC110 - nothing here could set an event
            await asyncio.sleep(POLL_S)
    try:
        # What it has left in its session may take a while.
        status = await asyncio.to_thread(child.wait)
    except RuntimeError:
        # No thread is left to wait in.
        status = child.wait()
    assert status is not None, "it was waited for without a limit"
    return status


async def _has_become_readable(descriptor: int) -> bool:
    """Wait until it is, and close it. False: the kernel watches no more descriptors, for want of memory or by this user's limit."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, gone.set)
    except (OSError, MemoryError):
        os.close(descriptor)
        return False
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return True


async def end(children: Sequence[ChildProcess], grace_s: float) -> list[ChildProcess]:
    """Ask children to end, kill what is left of them after the grace period, and wait for all.

    Args:
        children: whom, each with everything it has started.
        grace_s: seconds from SIGTERM to SIGKILL.

    Returns:
        Those that had not ended by themselves.
    """
    for child in children:
        child.ask_to_end()
    ended = [asyncio.create_task(await_end(child)) for child in children]
    if ended:
        await asyncio.wait(ended, timeout=grace_s)
    killed = [child for child in children if not child.has_ended]
    for child in children:
        child.kill()
    await asyncio.gather(*ended)
    return killed
