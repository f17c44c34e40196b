"""The launcher's side of a template process: one per host, which has imported what its processes need, and is forked for each.

Usable from any process that may take in its descendants' orphans: a launcher, a test. Not from several threads at once.

    with Template(Prepare(modules=("torch",)), environment=os.environ) as template:
        template.await_ready()
        pid = template.begin([sys.executable, "train.py"], environment=os.environ, log=log.fileno())
        os.waitpid(pid, 0)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from recovery.launch import fork_messages, python_command
from recovery.launch.children import tied
from recovery.launch.fork_messages import Fork, Forked, NotForked, Prepare, Prepared, Stale, Unsafe

_PROGRAM = str(Path(__file__).with_name("template_process.py"))
_PR_SET_CHILD_SUBREAPER = 36
"""Of linux/prctl.h."""
READY_S = 300.0
"""How long its imports may take."""
_BEGIN_S = 60.0
"""How long one fork may take; a loaded machine needs a second."""
_END_S = 5.0
_READ_AT_LOAD = (
    "ASAN_", "CUDA_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NPY_", "NUMEXPR_",
    "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_",
)  # fmt: skip
"""How variables begin that interpreters and libraries read when they are loaded, and not again."""


class NotBegun(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process was not forked. It can be spawned."""

    reason: str
    over: bool
    """The template is of no further use: it has ended, or is stale."""


class Template:
    """One template process. Its forks are children of this process, in sessions of their own, and end with it."""

    def __init__(
        self,
        prepare: Prepare,
        *,
        environment: Mapping[str, str],
        interpreter: str = sys.executable,
        options: Sequence[str] = (),
    ) -> None:
        """Start it, from the main thread; it imports by itself. This process takes in its descendants' orphans from now on.

        Args:
            prepare: what it imports, and for whom.
            environment: what its processes have in common. Libraries read some of it when they are loaded.
            interpreter: that it runs on, and its processes with it.
            options: of the interpreter (`-u`, `-X dev`), as its processes have them.

        Raises:
            OSError: it could not be started.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.interpreter, self.options = interpreter, tuple(options)
        self._environment = dict(environment)
        # What it prints while it imports, each of its processes would have printed.
        self._printed = os.memfd_create("template")
        self._link, theirs = socket.socketpair()
        with theirs:
            command = [interpreter, *options, _PROGRAM, str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                tied(command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._link.settimeout(READY_S)
        with contextlib.suppress(OSError):
            fork_messages.send(self._link, prepare)

    @property
    def pid(self) -> int:
        """Of the template itself."""
        return self._process.pid

    def await_ready(self) -> Prepared | NotBegun:
        """Wait for its imports."""
        try:
            answer = fork_messages.receive_answer(self._link)
        except (EOFError, OSError) as error:
            return NotBegun(reason=self._how_it_ended(error), over=True)
        self._link.settimeout(_BEGIN_S)
        match answer:
            case Prepared():
                return answer
            case Unsafe(reason=reason):
                return NotBegun(reason=reason, over=True)
            case _:
                return NotBegun(reason="it answered what was not asked", over=True)

    def begin(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: int,
        cpus: Sequence[int] = (),
        directory: str | None = None,
    ) -> int | NotBegun:
        """Fork a process. Gives its process id: a child of this process, which is to be waited for.

        Args:
            command: as it would be spawned.
            environment: all of it.
            log: descriptor where its output goes.
            cpus: processors it may use; none: all.
            directory: where it begins; None: where this process is.

        Raises:
            OSError: the system refused. Nothing was begun.
        """
        reason = self._cannot(command, environment)
        if reason:
            return NotBegun(reason=reason, over=False)
        request = Fork(
            command=tuple(command),
            environment={os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            cpus=tuple(cpus),
            directory=directory or os.getcwd(),  # noqa: PTH109 - a text on the wire
        )
        go, may_go = os.pipe()
        try:
            fork_messages.send(self._link, request, [log, go])
            answer = fork_messages.receive_answer(self._link)
            match answer:
                case Forked(pid=pid):
                    with contextlib.suppress(BrokenPipeError):
                        os.write(may_go, b"1")
                    return pid
                case Stale(reason=reason):
                    return NotBegun(reason=reason, over=True)
                case NotForked(errno=number, reason=reason):
                    raise OSError(number, reason)
                case _:
                    return NotBegun(reason="it answered what was not asked", over=True)
        except EOFError as error:
            return NotBegun(reason=self._how_it_ended(error), over=True)
        except TimeoutError as error:
            return NotBegun(reason=self._how_it_ended(error), over=True)
        finally:
            os.close(go)
            os.close(may_go)

    def end(self) -> None:
        """End the template; its processes go on."""
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._printed)

    def __enter__(self) -> Template:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.end()

    def _cannot(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Why this process can be no fork of this template; empty: it can."""
        read = python_command.read(command)
        if read is None:
            return f"{command[0]} is not started as `python script` or `python -m module`"
        if (read.interpreter, read.options) != (self.interpreter, self.options):
            return "it runs on another interpreter, or with other options of it"
        mine, its = self._environment, environment
        differing = sorted(
            name
            for name in {*mine, *its}
            if name.startswith(_READ_AT_LOAD) and mine.get(name) != its.get(name)
        )
        return f"{differing[0]} is read when libraries are loaded, and differs" if differing else ""

    def _how_it_ended(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return "the template process does not answer"
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "the template process does not answer"
        lines = os.pread(self._printed, 1 << 16, 0).decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return f"the template process ended with status {status}{last}"
