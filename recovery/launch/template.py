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
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from recovery.launch import fork_messages, python_command
from recovery.launch.children import tied
from recovery.launch.fork_messages import Fork, Forked, NotForked, Prepare, Prepared, Stale, Unsafe
from recovery.launch.restarts import describe
from recovery.launch.strays import take_in_orphans

_PROGRAM = str(Path(__file__).with_name("template_process.py"))
READY_S = 300.0
"""How long its imports may take."""
_BEGIN_S = 8.0
"""How long one fork may take. It takes 0.05 s, and 5 s were seen on a machine with fifteen times as much to do as it can."""
_END_S = 5.0
_READ_AT_LOAD = (
    "ASAN_", "CUDA_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NPY_", "NUMEXPR_",
    "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_",
)  # fmt: skip
"""How variables begin that interpreters and libraries read when they are loaded, and not again."""

_NAME_PROCESSORS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables that let a library choose among the processors that it finds when it is loaded."""


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
        cpus: Sequence[int] = (),
    ) -> None:
        """Start it, from the main thread; it imports by itself. This process takes in its descendants' orphans from now on.

        Args:
            prepare: what it imports, and for whom.
            environment: what its processes have in common. Libraries read some of it when they are loaded.
            interpreter: that it runs on, and its processes with it.
            options: of the interpreter (`-u`, `-X dev`), as its processes have them.
            cpus: processors of one of its processes; none: all. Libraries count them when they are loaded.

        Raises:
            OSError: it could not be started.
        """
        take_in_orphans()
        self.interpreter, self.options = interpreter, tuple(options)
        self._environment = dict(environment)
        self._all_cpus = os.sched_getaffinity(0)
        self._cpus = set(cpus) or self._all_cpus
        self._using = threading.Lock()
        # What it prints while it imports, each of its processes would have printed.
        self._printed = os.memfd_create("template")
        self._link, theirs = socket.socketpair()
        with theirs:
            command = [interpreter, *options, _PROGRAM, str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                tied(command, cpus),
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
            with self._using:
                answer = fork_messages.receive_answer(self._link)
                self._link.settimeout(_BEGIN_S)
        except (EOFError, OSError):
            return NotBegun(reason=self.how_it_ended(), over=True)
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
        reason = self._cannot(command, environment, cpus)
        if reason:
            return NotBegun(reason=reason, over=False)
        request = Fork(
            command=tuple(command),
            environment={os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            cpus=tuple(cpus or sorted(self._all_cpus)),
            directory=directory or os.getcwd(),  # noqa: PTH109 - a text on the wire
        )
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
            reason = f"it does not answer within {_BEGIN_S:g} s" if hangs else self.how_it_ended()
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

    def has_ended(self) -> bool:
        """By itself, or by somebody else."""
        return self._process.poll() is not None

    def how_it_ended(self) -> str:
        """For people: its status with what it has printed last."""
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it does not answer"
        last = self.last_line()
        return f"it has ended ({describe(status)}){f': {last}' if last else ''}"

    def last_line(self) -> str:
        """What it has printed last; empty: nothing."""
        try:
            printed = os.pread(self._printed, 1 << 16, 0).decode(errors="replace").strip()
        except OSError:
            printed = ""
        return printed.splitlines()[-1] if printed else ""

    def end(self) -> None:
        """End the template; its processes go on. Whoever waits for its answer gets none."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with self._using:
            self._link.close()
            if self._printed >= 0:
                os.close(self._printed)
                self._printed = -1

    def __enter__(self) -> Template:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.end()

    def _cannot(self, command: Sequence[str], environment: Mapping[str, str], cpus: Sequence[int]) -> str:
        """Why this process can be no fork of this template; empty: it can."""
        read = python_command.read(command)
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
        if len(set(cpus) or self._all_cpus) != len(self._cpus):
            return "libraries count processors when they are loaded, and not all workers have as many"
        if set(cpus) - self._cpus and any(name in its for name in _NAME_PROCESSORS):
            return "a variable names processors, which libraries have looked up when they were loaded"
        return ""
