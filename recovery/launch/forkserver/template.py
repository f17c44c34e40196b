"""The launcher's side of a template process: one per host, which has imported what its processes need, and is forked for each.

Usable from any process that may take in its descendants' orphans: a launcher, a test. Not from several threads at once.

    with Template(Prepare(modules=("torch",)), environment=os.environ) as template:
        template.await_ready()
        pid = template.begin([sys.executable, "train.py"], environment=os.environ, log=log.fileno())
        os.waitpid(pid, 0)
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import override

from recovery import process_conditions
from recovery.launch.children import spawn
from recovery.launch.forkserver import fork_messages
from recovery.launch.forkserver.fork_messages import Prepare, Prepared, Unsafe
from recovery.launch.forkserver.fork_requests import BEGIN_S, ForkRequests, NotBegun

_PROGRAM = str(Path(__file__).with_name("template_process.py"))
READY_S = 300.0
"""How long its imports may take."""


class Template(ForkRequests):
    """One template process. Its forks are children of this process, in sessions of their own, and end with it."""

    def __init__(
        self,
        prepare: Prepare,
        *,
        environment: Mapping[str, str],
        interpreter: str = sys.executable,
        options: Sequence[str] = (),
        conditions: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it, from the main thread; it imports by itself. This process takes in its descendants' orphans from now on.

        Args:
            prepare: what it imports, and for whom.
            environment: what its processes have in common. Libraries read some of it when they are loaded.
            interpreter: that it runs on, and its processes with it.
            options: of the interpreter (`-u`, `-X dev`), as its processes have them.
            conditions: of one of its processes (recovery.process_conditions); None: those of this one. Libraries count processors
                when they are loaded.

        Raises:
            OSError: it could not be started.
        """
        process_conditions.take_in_orphans()
        ours, theirs = socket.socketpair()
        conditions = process_conditions.note() if conditions is None else conditions
        # What it prints while it imports, each of its processes would have printed.
        self._printed = os.memfd_create("template")
        with theirs:
            command = [interpreter, *options, _PROGRAM, str(theirs.fileno())]
            process = spawn(
                command,
                environment=environment,
                conditions=conditions,
                log=self._printed,
                pass_fds=[theirs.fileno()],
            )
        super().__init__(
            ours,
            process,
            interpreter=interpreter,
            options=options,
            environment=environment,
            conditions=conditions,
        )
        self._link.settimeout(READY_S)
        with contextlib.suppress(OSError):
            fork_messages.send(self._link, prepare)

    def await_ready(self) -> Prepared | NotBegun:
        """Wait for its imports."""
        try:
            with self._using:
                answer = fork_messages.receive_answer(self._link)
                self._link.settimeout(BEGIN_S)
        except (EOFError, OSError):
            return NotBegun(reason=self.how_it_ended(), over=True)
        match answer:
            case Prepared():
                return answer
            case Unsafe(reason=reason):
                return NotBegun(reason=reason, over=True)
            case _:
                return NotBegun(reason="it answered what was not asked", over=True)

    @override
    def last_line(self) -> str:
        try:
            printed = os.pread(self._printed, 1 << 16, 0).decode(errors="replace").strip()
        except OSError:
            printed = ""
        return printed.splitlines()[-1] if printed else ""

    @override
    def end(self) -> None:
        super().end()
        with self._using:
            if self._printed >= 0:
                os.close(self._printed)
                self._printed = -1

    def __enter__(self) -> Template:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.end()
