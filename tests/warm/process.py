"""Processes of tests that need not start cold: each is forked from one that has done the imports, and is this process's own child.

`Process` is `subprocess.Popen`, `run` is `subprocess.run`. What cannot be forked as asked (another program, an interpreter's option, a
variable that is read only when a process begins, traced code) is started cold, and so is everything while `cold` is set: tests with the
mark `cold_start`. Every forked process draws its own random numbers; only the order of sets and the modules at hand are the server's.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, AnyStr

from tests.warm import requests

_OTHERS = (
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
    *(
        "sqlalchemy.orm",
        "sqlalchemy.event",
        "typer",
        "typer._adapters",
        "typer.testing",
        "watchdog.observers",
    ),
)
PLAIN = (
    *_OTHERS,
    *("recovery.training.run", "recovery.training.callbacks", "recovery.store.repository"),
    *("recovery.store.writer", "recovery.store.reader", "recovery.scheduler.service"),
    *("pytest", "_pytest.assertion.rewrite"),
)
"""What `recovery` imports of others, of its own what the engine's template imports (recovery/launch/preload.py) and a scheduler, and
pytest, which may start a script."""
TORCH = (
    *PLAIN,
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "numpy",
    "recovery.torch",
)
PYTEST = (*_OTHERS, "pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.strategies", "xdist")

MINDSPORE = (*_OTHERS, "mindspore", "mindspore.nn", "mindspore.dataset", "mindspore.communication", "numpy")
"""It starts no thread at its import, and reads neither the rank nor the cluster's variables there."""

_SUBREAPER = 36
_ROOT = Path(__file__).parents[2]

_lock = threading.Lock()
_servers: dict[tuple[tuple[str, ...], tuple[str, ...]], _Server] = {}
"""By their imports, and what they are started under."""
_is_cold = False


class _Server:
    """A server, and the socket to ask it by."""

    def __init__(self, imports: tuple[str, ...], under: tuple[str, ...]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MS_", "JOB_", requests.TRACED, "PYTHONPATH"))
        }
        self._environment["OMP_NUM_THREADS"] = "1"
        # Arrow's allocator, which comes with datasets and pandas, would start a thread when it is imported.
        self._environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
        self._imports = imports
        with theirs:
            command = [*under, sys.executable, "-m", "tests.warm.server", str(theirs.fileno()), *imports]
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        said = self._channel.recv(requests.REQUEST_MAX)
        assert said == b"imported", f"the server of {imports} has ended: {self._process.wait()}"

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Would a process that begins with this environment read the same at its begin?"""
        return requests.suits(self._environment, environment, self._imports)

    def fork(self, request: requests.Request) -> int:
        """A new child of this process; gives its pid."""
        with _orphans_are_ours():
            return requests.ask(self._channel, request)

    def stop(self) -> None:
        """End it."""
        self._channel.close()
        self._process.wait()


class Process(subprocess.Popen[AnyStr]):
    """A child that has its imports behind it, where that is possible."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        imports: tuple[str, ...] = PLAIN,
        under: Sequence[str] = (),
        has_warm_children: bool = False,
        **options: Any,
    ) -> None:
        """Start it.

        Args:
            command: as for Popen.
            imports: what the process, or its children, will import: PLAIN, TORCH, MINDSPORE or PYTEST.
            under: a command that goes on as this one, with other rights perhaps.
            has_warm_children: Python programs that it starts itself are forked too, once it takes in orphans.
            options: as for Popen.
        """
        self._imports, self._has_warm_children = imports, has_warm_children
        self._under = tuple(under)
        super().__init__([*under, *command], **options)

    def _execute_child(self, *arguments: Any) -> None:
        # Popen's own hook.
        command, *others = arguments
        behind = [command[len(self._under) :], *others]
        found = requests.of_popen(behind, has_warm_children=self._has_warm_children)
        if found is not None and (pid := _forked(self._imports, self._under, *found)):
            requests.forked_by(self, pid, requests.pipes_of(arguments))
        else:
            super()._execute_child(*arguments)  # type: ignore[misc]  # private


def run(
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    imports: tuple[str, ...] = PLAIN,
    under: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing to read; what it said. The arguments are those of `Process`.

    Raises:
        subprocess.TimeoutExpired: it did not end.
    """
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    process: Process[str]
    with Process(command, imports=imports, under=under, env=env, cwd=cwd, text=True, **streams) as process:
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


def _forked(
    imports: tuple[str, ...],
    under: tuple[str, ...],
    request: requests.Request,
    environment: Mapping[str, str],
) -> int:
    """The pid of a new child, 0 where it must start cold."""
    if _is_cold or not imports:
        return 0
    with _lock:
        server = _server(imports, under)
        return server.fork(request) if server.suits(environment) else 0


def _server(imports: tuple[str, ...], under: tuple[str, ...]) -> _Server:
    key = imports, under
    if key not in _servers:
        _servers[key] = _Server(imports, under)
    return _servers[key]


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
