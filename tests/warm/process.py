"""Processes of tests that need not start cold: each is forked from one that has done the imports, and is this process's own child.

`Process` is `subprocess.Popen`, `run` is `subprocess.run`. What cannot be forked as asked (another program, an interpreter's option, a
variable that is read only when a process begins, traced code) is started cold, and so is everything while `cold` is set: tests with the
mark `cold_start`. Every forked process draws its own random numbers; only the order of sets and the modules at hand are the server's.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, AnyStr

from tests.warm.server import REQUEST_MAX

PLAIN = (
    *("asyncio", "ctypes", "multiprocessing", "pdb", "sqlite3", "ssl", "uuid", "importlib.metadata"),
    *(
        "aiohttp",
        "aiohttp.web",
        "alembic.command",
        "cryptography.x509",
        "filelock",
        "msgspec",
        "msgspec.json",
    ),
    *("psutil", "rich.console", "rich.table", "rich.live", "sqlalchemy", "sqlalchemy.dialects.sqlite"),
    *("sqlalchemy.orm", "sqlalchemy.event", "typer", "typer.testing", "watchdog.observers"),
)
"""What `recovery` imports of others."""
TORCH = (
    *PLAIN,
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "numpy",
)
PYTEST = (*PLAIN, "pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.strategies", "xdist")

MINDSPORE = (*PLAIN, "mindspore", "mindspore.nn", "mindspore.dataset", "mindspore.communication", "numpy")
"""It starts no thread at its import, and reads neither the rank nor the cluster's variables there."""

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ")
_READ_BY_TORCH = ("OMP_", "MKL_", "TORCH_", "PYTORCH_", "CUDA_")
_READ_BY_MINDSPORE = ("OMP_", "GLOG_", "VLOG_", "OPENCV_", "MS_SIMULATION_LEVEL", "MS_SUBMODULE_LOG_v")
"""Variables of these names work only in a process that begins with them."""
_TRACED = "COV"
_SUBREAPER = 36
_SERVER = Path(__file__).with_name("server.py")

_lock = threading.Lock()
_servers: dict[tuple[str, ...], _Server] = {}
_is_cold = False


class _Server:
    """A server, and the socket to ask it by."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MS_", "JOB_", _TRACED, "PYTHONPATH"))
        }
        self._environment["OMP_NUM_THREADS"] = "1"
        self._read = (
            _READ_AT_START
            + (_READ_BY_TORCH if "torch" in imports else ())
            + (_READ_BY_MINDSPORE if "mindspore" in imports else ())
        )
        with theirs:
            command = [sys.executable, str(_SERVER), str(theirs.fileno()), *imports]
            self._process = subprocess.Popen(
                command, env=self._environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        said = self._channel.recv(REQUEST_MAX)
        assert said == b"imported", f"the server of {imports} has ended: {self._process.wait()}"

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Would a process that begins with this environment read the same at its begin?"""
        mine, other = (
            {
                name: value
                for name, value in variables.items()
                if name.startswith(self._read) and name != "PYTHONPATH"
            }
            for variables in (self._environment, environment)
        )
        return mine == other

    def fork(self, request: bytes, streams: Sequence[int]) -> int:
        """A new child of this process; gives its pid."""
        with _orphans_are_ours():
            socket.send_fds(self._channel, [request], streams)
            pid = int(self._channel.recv(REQUEST_MAX))
            # Its parent has ended then.
            self._channel.recv(REQUEST_MAX)
        # Otherwise nobody would ever learn its exit code.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return pid

    def stop(self) -> None:
        """End it."""
        self._channel.close()
        self._process.wait()


class Process(subprocess.Popen[AnyStr]):
    """A child that has its imports behind it, where that is possible."""

    def __init__(self, command: Sequence[str], *, imports: tuple[str, ...] = PLAIN, **options: Any) -> None:
        """Start it.

        Args:
            command: as for Popen.
            imports: what the process will import: PLAIN, TORCH, MINDSPORE or PYTEST.
            options: as for Popen.
        """
        self._imports = imports
        super().__init__(command, **options)

    def _execute_child(self, args: Any, executable: Any, *options: Any) -> None:
        # Popen's own hook; the options have stood in this order since Python 3.9.
        preexec_fn, _, pass_fds, cwd, env, _, _, shell, *rest = options
        pipes, (_, gid, gids, uid, umask, new_session) = rest[:6], rest[6:12]
        as_we_are = (executable, preexec_fn, gid, gids, uid, umask) == (None, None, None, None, None, -1)
        environment = dict(os.environ if env is None else env)
        words = _words(args, cwd) if as_we_are and not pass_fds and not shell else []
        request = {
            "words": words,
            "cwd": str(Path(cwd or ".").absolute()),
            "env": environment,
            "new_session": bool(new_session),
        }
        streams = [
            stream if given == -1 else given for stream, given in enumerate((pipes[0], pipes[3], pipes[5]))
        ]
        pid = _forked(self._imports, request, streams) if words else 0
        if not pid:
            super()._execute_child(args, executable, *options)  # type: ignore[misc]  # private
            return
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # private


def run(
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    imports: tuple[str, ...] = PLAIN,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing to read; what it said.

    Raises:
        subprocess.TimeoutExpired: it did not end.
    """
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process: Process[str]
    with Process(command, imports=imports, env=env, cwd=cwd, text=True, **streams) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


@contextmanager
def cold(*, really: bool = True) -> Iterator[None]:
    """Start every process as a person does; or not, for something beside the subject of a cold test."""
    global _is_cold  # noqa: PLW0603 - one switch for all that a test calls
    before, _is_cold = _is_cold, really
    try:
        yield
    finally:
        _is_cold = before


def is_cold() -> bool:
    """Does every process start as a person's does?"""
    return _is_cold


def stop_servers() -> None:
    """End all that has been started for this process."""
    with _lock:
        for server in _servers.values():
            server.stop()
        _servers.clear()


def _forked(imports: tuple[str, ...], request: Mapping[str, Any], streams: Sequence[int]) -> int:
    """The pid of a new child, 0 where it must start cold."""
    text = json.dumps(request).encode()
    if (
        _is_cold
        or not imports
        or len(text) > REQUEST_MAX
        or any(name.startswith(_TRACED) for name in request["env"])
    ):
        return 0
    with _lock:
        server = _server(imports)
        return server.fork(text, streams) if server.suits(request["env"]) else 0


def _server(imports: tuple[str, ...]) -> _Server:
    if imports not in _servers:
        _servers[imports] = _Server(imports)
    return _servers[imports]


def _words(command: Sequence[str], cwd: Path | None) -> list[str]:
    """The words behind `python`; none where the command is something else."""
    program, *words = map(str, command)
    if program != sys.executable:
        words = [program, *words]
        if not _is_script_of_ours(Path(program)):
            return []
    if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        return []
    is_script = words[0] not in ("-m", "-c")
    return words if not is_script or Path(cwd or ".", words[0]).is_file() else []


def _is_script_of_ours(path: Path) -> bool:
    """Does the kernel start it with our interpreter?"""
    first_line = f"#!{sys.executable}\n".encode()
    return path.is_absolute() and path.is_file() and path.read_bytes()[: len(first_line)] == first_line


@contextmanager
def _orphans_are_ours() -> Iterator[None]:
    """Become, for a moment, the parent of processes below us whose parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        yield
    finally:
        libc.prctl(_SUBREAPER, 0, 0, 0, 0)
