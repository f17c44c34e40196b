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


class ProgramTemplate(ForkRequests):
    """The proxy's side of it."""

    def __init__(self, link: socket.socket, pid: int, request: Fork) -> None:
        """Note it."""
        self.environment = {
            os.fsdecode(name): os.fsdecode(value) for name, value in request.environment.items()
        }
        """That this process was begun with: its imports may have set more, which are none of its programs'."""
        command = parse_python_command(request.command)
        assert command is not None, "this process was forked"
        super().__init__(
            link,
            ChildProcess(pid, leads_session=False),
            interpreter=command.interpreter,
            options=command.options,
            environment=self.environment,
            conditions=request.conditions,
        )
        link.settimeout(BEGIN_S)

    def begin_program(self, command: Sequence[str], environment: Mapping[str, str]) -> int | NotBegun:
        """Fork a program, which writes where this process does. Gives its process id: a child of this process.

        Args:
            command: as it would be spawned.
            environment: all of it.

        Raises:
            OSError: the system refused. Nothing was begun.
        """
        # Afterwards orphans go to the launcher again, which reaps them.
        process_conditions.take_in_orphans()
        try:
            return self.begin(command, environment=environment, log=1)
        finally:
            process_conditions.take_in_orphans(False)


_own: list[ProgramTemplate] = []
"""Of this process, at most one."""


def own() -> ProgramTemplate | None:
    """Of this process; None: it was not forked, or its programs cannot be."""
    return _own[0] if _own else None


def give_up() -> None:
    """End it, and do without it from now on."""
    while _own:
        _own.pop().end()


def fork_program_template(
    request: Fork, words: Sequence[str], environment: Mapping[bytes, bytes]
) -> socket.socket | None:
    """Fork this process, a worker proxy that was just begun. Gives the new one's link, which is its template; None in the proxy.

    Args:
        request: by which the proxy was begun.
        words: what /proc is to show as the new one's command line.
        environment: and as its environment.
    """
    ours, theirs = socket.socketpair()
    proxy = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        ours.close()
        theirs.close()
        os.write(2, f"the programs are spawned: no process for their template ({error.strerror})\n".encode())
        return None
    if pid:
        theirs.close()
        _own.append(ProgramTemplate(ours, pid, request))
        return None
    ours.close()
    process_conditions.tie_to(proxy)
    proc_cmdline.set_proc_cmdline(words, environment)
    return theirs
