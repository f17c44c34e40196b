"""The program behind a worker proxy, from its start to its end: forked where the proxy can, else spawned."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recovery import log
from recovery.launch.children import end_session, has_ended, signal_group, tied
from recovery.launch.forkserver import proxy_template

_logger = logging.getLogger("recovery.launch")


class ProgramProcess:
    """One start of it: a child of this process, in a session of its own, which the kernel ends with this one."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        conditions: Mapping[str, Any],
        on_end: Callable[[], None],
    ) -> None:
        """Start it, from the main thread.

        Args:
            command: of the person who started the job.
            environment: all of it.
            conditions: that it runs under (recovery.process_conditions).
            on_end: called from a thread once it has ended.

        Raises:
            OSError: it could not be started.
        """
        pid = _forked(command, environment)
        self.is_forked = pid > 0
        if pid:
            wait: Callable[[], int] = lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: E731 - as short as its twin below
        else:
            process = subprocess.Popen(  # noqa: S603 - the command of the person who started the job
                tied(command, conditions), env=dict(environment), start_new_session=True
            )
            pid, wait = process.pid, process.wait
        self.pid = pid
        """Of the process, and of its session."""
        self.status = 0
        """Once it has ended: exit code; negative: the signal that killed it."""
        self._on_end, self._ended = on_end, threading.Event()
        self._reaping = threading.Lock()
        """Held while it is waited for, and while it is signalled: in between its number may become another process's."""
        self._waiting = threading.Thread(target=self._await_end, args=(wait,), daemon=True)
        self._waiting.start()

    def end(self, grace_s: float) -> None:
        """Ask it to end, then make it; what it may have started goes with it.

        Args:
            grace_s: seconds that it may take.
        """
        self._signal(signal.SIGTERM)
        self._ended.wait(grace_s)
        self._signal(signal.SIGKILL)
        self._waiting.join()

    def _signal(self, number: signal.Signals) -> None:
        with self._reaping:
            if self._ended.is_set():
                return
            if number is signal.SIGKILL:
                # What it has started goes behind it, see children.py.
                os.kill(self.pid, number)
            else:
                signal_group(self.pid, number)

    def _await_end(self, wait: Callable[[], int]) -> None:
        has_ended(self.pid, wait=True)
        end_session(self.pid)
        with self._reaping:
            self.status = wait()
            self._ended.set()
        self._on_end()


def _forked(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Its process id; 0: it is to be spawned, and the log says why. The launcher says it where that is so for all programs."""
    template = proxy_template.own()
    if template is None:
        return 0
    begun = template.begin_program(command, environment)
    if isinstance(begun, int):
        return begun
    _logger.warning("event=program_spawned reason=%s", log.quoted(begun.reason))
    if begun.over:
        proxy_template.give_up()
    return 0
