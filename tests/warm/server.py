"""A program that has imported what the tests' processes import, and forks one of them for each request.

`python -m tests.warm.server DESCRIPTOR MODULE...`: requests come by the socket behind the descriptor (requests.py). What it imports of
this project a forked process gets when it imports that itself and would find the same files (prepared.py); else it imports its own, a
copy with a planted bug perhaps. It has one thread, and ends when nobody holds the other end of the socket.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import random
import runpy
import socket
import sys
import time
import types
import weakref
from pathlib import Path
from typing import Any, NoReturn, TextIO

from recovery.launch.forkserver import page_sharing, proc_cmdline
from tests.warm import children
from tests.warm.prepared import Prepared
from tests.warm.requests import DESCRIPTORS_MAX, REQUEST_MAX

_END = "end_of_a_warm_process"
_NEW_PARENT_PAUSE_S = 0.0002


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answer requests with the pid of a new process. Returns a request in that process, None when there are no more."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, REQUEST_MAX, DESCRIPTORS_MAX)
        if not text:
            return None
        between = os.fork()
        if not between:
            parent = os.getpid()
            if child := os.fork():
                channel.send(str(child).encode())
                os._exit(0)
            request: dict[str, Any] = json.loads(text)
            _take_over(channel, descriptors, request["numbers"], parent)
            return request
        os.waitpid(between, 0)
        channel.send(b"ready")
        for descriptor in descriptors:
            os.close(descriptor)


def _take_over(channel: socket.socket, descriptors: list[int], numbers: list[int], between: int) -> None:
    """In the new process: the caller's child, with the descriptors by their numbers and no other."""
    channel.detach()
    # Beyond all numbers first: one of them may be a descriptor that comes later.
    held = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, max(numbers) + 1) for descriptor in descriptors]
    for descriptor, number in zip(held, numbers, strict=True):
        os.dup2(descriptor, number)
    # Not all numbers up to the limit: that is a billion in some containers.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers here
        # The descriptor of the listing itself is closed already.
        with contextlib.suppress(OSError):
            if int(name) not in numbers:
                os.close(int(name))
    while os.getppid() == between:
        time.sleep(_NEW_PARENT_PAUSE_S)


def _become(request: dict[str, Any]) -> None:
    """Take the directory, the environment and the words of a fresh interpreter, and what it would draw from chance."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    _open_streams()
    # Where Python's threads were when C++ aborted the process: a rare end leaves nothing else to read.
    faulthandler.enable(file=2)
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    importlib.invalidate_caches()
    sys.orig_argv = [sys.executable, *request["words"]]
    proc_cmdline.set_proc_cmdline(sys.orig_argv, dict(os.environb))
    paths = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    # The first entry is the directory that the server was started in.
    sys.path[:] = [str(Path(path).absolute()) for path in paths] + sys.path[1:]


def _open_streams() -> None:
    """Text over the three descriptors, as the interpreter opens it: pipes and files differ."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        stream = io.TextIOWrapper(
            open(  # noqa: SIM115 - open until the end
                descriptor,
                "wb" if descriptor else "rb",
                buffering=0 if before.write_through else -1,
                closefd=False,
            ),
            encoding=before.encoding,
            errors=before.errors,
            newline="\n" if descriptor else None,
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Exec(BaseException):
    """In the place of exec: the program goes on as another one."""


def _tie(words: list[str]) -> None:
    """Run the program that ties this process to its parent and becomes another one. It returns where the parent has ended."""

    def become(*_: object) -> NoReturn:
        raise _Exec

    program, *sys.argv[1:] = words
    execvp = os.execvp
    vars(os)["execvp"] = become
    try:
        runpy.run_path(program, run_name="__main__")
    except _Exec:
        vars(os)["execvp"] = execvp
    else:
        os._exit(0)


def _run(request: dict[str, Any]) -> NoReturn:
    """Run the words behind `python` as `__main__`, and end as an interpreter does."""
    words: list[str] = request["words"]
    # Taken down after all modules, and before those that all others need.
    vars(sys)[_END] = end = _End()
    if request["tying"]:
        _tie([*request["tying"], *words])
    program = types.ModuleType("__main__")
    vars(program)["__builtins__"] = builtins
    sys.modules["__main__"] = program
    try:
        if words[0] == "-m":
            sys.argv = ["-m", *words[2:]]
            sys.path.insert(0, str(Path.cwd()))
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # what `python -m` calls
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.path.insert(0, "")
            exec(compile(words[1], "<string>", "exec"), vars(program))
        else:
            path = Path(words[0]).absolute()
            sys.argv = list(words)
            sys.path.insert(0, str(path.resolve().parent))
            program.__file__ = str(path)
            exec(compile(path.read_bytes(), str(path), "exec"), vars(program))
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        end.status = _status_of(error.code)
        raise
    except BaseException as error:  # noqa: BLE001 - the interpreter's own answer to all of them
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    else:
        code = 0
    end.status = code
    sys.exit(code)


def _status_of(code: object) -> int:
    """As the interpreter answers what `sys.exit` was given."""
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


class _End:
    """The last thing of the program that an interpreter takes down when it ends: then the process ends, and the rest is left standing.

    The rest would write to every page with a text that the server shares: two thirds of what a short process does in all.
    """

    def __init__(self) -> None:
        """Make ready what cannot be looked up any more then."""
        self.status: int | None = None
        """None: the interpreter goes on to its own end."""
        self._streams: tuple[TextIO, ...] = ()
        # No other thread runs meanwhile.
        self._exit = ctypes.PyDLL(None).exit

    def __del__(self) -> None:
        if self.status is not None:
            for stream in self._streams:
                stream.flush()
            self._exit(self.status)

    def look_at_streams(self) -> None:
        """What cannot be written the interpreter answers by itself. Now it is about to find out."""
        self._streams = (sys.stdout, sys.stderr)
        try:
            for stream in self._streams:
                stream.flush()
        except (AttributeError, OSError, ValueError):
            # One that is closed, or was taken away, too.
            self.status = None


def _leave_standing(modules: dict[str, types.ModuleType]) -> None:
    """Let an interpreter that ends take down only what came after these modules.

    To take them down writes to every page that the server shares: for torch that is more than all else a short process does.
    """
    end = getattr(sys, _END, None)
    if end is not None:
        end.look_at_streams()
    kept = [sys.modules.pop(name) for name in modules.keys() & sys.modules.keys()]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_libraries_standing() -> None:
    """The same for what C and C++ have registered so far: whatever is registered later is still called."""
    libc = ctypes.CDLL(None)
    # Called in the opposite order: everything is flushed, then the process has ended with its status.
    if libc.on_exit(libc._exit, None) or libc.__cxa_atexit(libc.fflush, None, None):
        raise OSError("no function can be called at exit")
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # private
        finalizer.atexit = False


def _main() -> None:
    imported: dict[str, types.ModuleType] = {}
    # The first that is registered is called last.
    atexit.register(_leave_standing, imported)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    names = sys.argv[2:]
    # Modules stay: looking for garbage among them again and again is a third of the time.
    gc.disable()
    for name in names:
        importlib.import_module(name)
    sys.meta_path.insert(0, Prepared())
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"an import has started threads: {threads}"
    _leave_libraries_standing()
    imported.update(sys.modules)
    for name in ("sys", "builtins", "__main__"):
        del imported[name]
    gc.collect()
    gc.freeze()
    gc.enable()
    page_sharing.join_pages()
    begun_with = dict(os.environ)
    channel.send(b"imported")
    while (request := _serve(channel)) is not None:
        served = children.of_this_process(begun_with, names) if request["has_warm_children"] else None
        if served is None:
            _become(request)
            _run(request)
        channel = served


if __name__ == "__main__":
    _main()
