"""What a forked worker proxy forks its programs from: a process like the template that it comes from itself, and a child of its own.

It is forked before the proxy has a thread, so it is the template once more, with another process to serve. Nothing is imported again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from recovery import process_conditions
from recovery.launch.child_process import ChildProcess
from recovery.launch.forkserver import proc_cmdline
from recovery.launch.forkserver.fork_messages import Fork
from recovery.launch.forkserver.fork_requests import BEGIN_S, ForkRequests, NotBegun
from recovery.launch.python_command import parse_python_command
from recovery.worker import exec_in_place

_own: list[ForkRequests] = []
"""Of this process, at most one; none: it was not forked, or its programs cannot be."""


def begin_program(command: Sequence[str], environment: Mapping[str, str]) -> int | NotBegun | None:
    """Fork a program, which writes where this process does. Gives its process id: a child of this process; None: there is no template.

    Args:
        command: as it would be spawned.
        environment: all of it.

    Raises:
        OSError: the system refused. Nothing was begun.
    """
    if not _own:
        return None
    # Afterwards orphans go to the launcher again, which reaps them.
    process_conditions.take_in_orphans()
    try:
        begun = _own[0].begin(command, environment=environment, log=1)
    finally:
        process_conditions.take_in_orphans(False)
    if isinstance(begun, NotBegun) and begun.over:
        _own.pop().end()
    return begun


def fork_program_template(
    request: Fork, words: Sequence[str], environment: Mapping[bytes, bytes]
) -> socket.socket | None:
    """Fork this process, a worker proxy that was just begun. Gives the new one's link, which is its template; None in the proxy.

    Args:
        request: by which the proxy was begun.
        words: what /proc is to show as the new one's command line.
        environment: and as its environment.
    """
    command = parse_python_command(request.command)
    assert command is not None, "this process was forked"
    ours, theirs = socket.socketpair()
    proxy = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        ours.close()
        theirs.close()
        os.write(2, f"the programs are spawned: no process for their template ({error.strerror})\n".encode())
        return None
    if pid == 0:
        ours.close()
        process_conditions.tie_to(proxy)
        proc_cmdline.set_proc_cmdline(words, environment)
        return theirs
    theirs.close()
    ours.settimeout(BEGIN_S)
    _own.append(
        ForkRequests(
            ours,
            ChildProcess(pid, leads_session=False),
            interpreter=command.interpreter,
            options=command.options,
            environment=exec_in_place.start_environment(),
            conditions=request.conditions,
        )
    )
    return None
