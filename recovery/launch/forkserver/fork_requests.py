"""Asks a template for processes: a launcher its host's template, a worker proxy its own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from recovery.frameworks import FRAMEWORKS
from recovery.launch import python_command
from recovery.launch.child_process import ChildProcess
from recovery.launch.forkserver import fork_messages
from recovery.launch.forkserver.fork_messages import Fork, Forked, NotForked, Stale
from recovery.launch.restart_policy import describe

BEGIN_S = 8.0
"""How long one fork may take. It takes 0.05 s, and 5 s were seen on a machine with fifteen times as much to do as it can."""
_END_S = 5.0
_READ_AT_LOAD = (
    "ASAN_", "CUDA_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NPY_", "NUMEXPR_",
    "OMP_", "OPENBLAS_", "PYTHON", *(name for framework in FRAMEWORKS for name in framework.read_at_load),
)  # fmt: skip
"""How variables begin that interpreters and libraries read when they are loaded, and not again."""

_NAME_PROCESSORS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables that let a library choose among the processors that it finds when it is loaded."""


class NotBegun(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process was not forked. It can be spawned."""

    reason: str
    over: bool
    """The template is of no further use: it has ended, or is stale."""


class ForkRequests:
    """One template, and what those that can be forked from it have in common. Its forks are children of this process."""

    def __init__(
        self,
        link: socket.socket,
        process: ChildProcess,
        *,
        interpreter: str,
        options: Sequence[str],
        environment: Mapping[str, str],
        conditions: Mapping[str, Any],
    ) -> None:
        """Note it.

        Args:
            link: to the template.
            process: the template itself.
            interpreter: that it runs on, and its processes with it.
            options: of the interpreter.
            environment: with which it has loaded libraries.
            conditions: under which it has, and under which its processes begin.
        """
        self.interpreter, self.options = interpreter, tuple(options)
        self.process, self._link = process, link
        self._environment = dict(environment)
        self._conditions = dict(conditions)
        self._using = threading.Lock()

    def last_line(self) -> str:
        """What it has printed last; empty: nothing, or it was not kept."""
        return ""

    def how_it_ended(self) -> str:
        """For people, when it does not answer any more: its status with what it has printed last."""
        status = self.process.wait(_END_S)
        if status is None:
            return "it does not answer"
        last = self.last_line()
        return f"it has ended ({describe(status)}){f': {last}' if last else ''}"

    def end(self) -> None:
        """End the template; its processes go on. A caller that waits for its answer gets none."""
        self.process.end()
        with self._using:
            self._link.close()

    def begin(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: int,
        conditions: Mapping[str, Any] | None = None,
    ) -> int | NotBegun:
        """Fork a process. Gives its process id: a child of this process, which is to be waited for.

        Args:
            command: as it would be spawned.
            environment: all of it.
            log: descriptor where its output goes.
            conditions: in which it differs from the template's own.

        Raises:
            OSError: the system refused. Nothing was begun.
        """
        conditions = {**self._conditions, **(conditions or {})}
        reason = self._cannot(command, environment, conditions["processors"])
        if reason:
            return NotBegun(reason=reason, over=False)
        request = Fork.of(command, environment, conditions)
        go, may_go = os.pipe()
        try:
            with self._using:
                if self._link.fileno() < 0:
                    return NotBegun(reason="its launcher has ended it", over=True)
                fork_messages.send(self._link, request, [log, go])
                answer = fork_messages.receive_answer(self._link)
            if isinstance(answer, Forked):
                # One that died meanwhile reads nothing.
                with contextlib.suppress(BrokenPipeError):
                    os.write(may_go, b"1")
        except (EOFError, ConnectionError, TimeoutError) as error:
            hangs = isinstance(error, TimeoutError)
            reason = f"it does not answer within {BEGIN_S:g} s" if hangs else self.how_it_ended()
            return NotBegun(reason=reason, over=True)
        finally:
            os.close(go)
            os.close(may_go)
        match answer:
            case Forked(pid=pid):
                return pid
            case Stale(reason=reason):
                return NotBegun(reason=reason, over=True)
            case NotForked(errno=0, reason=reason):
                return NotBegun(reason=reason, over=False)
            case NotForked(errno=number, reason=reason):
                raise OSError(number, reason)
            case _:
                return NotBegun(reason="it answered what was not asked", over=True)

    def _cannot(self, command: Sequence[str], environment: Mapping[str, str], cpus: Sequence[int]) -> str:
        """Why this process can be no fork of this template; empty: it can."""
        read = python_command.parse_python_command(command)
        if read is None:
            return f"{command[0]} is not started as `python script` or `python -m module`"
        if (read.interpreter, read.options) != (self.interpreter, self.options):
            return "another interpreter, or other options of it"
        mine, its = self._environment, environment
        differing = sorted(
            name
            for name in {*mine, *its}
            if name.startswith(_READ_AT_LOAD) and mine.get(name) != its.get(name)
        )
        if differing:
            return (
                f"{differing[0]} is read when libraries are loaded, and is not what it was for the template"
            )
        its_cpus = self._conditions["processors"]
        if len(cpus) != len(its_cpus):
            return "libraries count processors when they are loaded, and not all workers have as many"
        if set(cpus) - set(its_cpus) and any(name in its for name in _NAME_PROCESSORS):
            return "a variable names processors, which libraries have looked up when they were loaded"
        return ""
