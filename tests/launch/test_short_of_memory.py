"""A launcher that is short of processes, of memory or of the kernel's watches: it waits for them, and ends no healthy process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from typing_extensions import override

from recovery.launch import restart_policy
from recovery.launch.child_process import ChildProcess
from recovery.launch.children import await_end, spawn
from recovery.launch.job_spec import StartMethod
from recovery.launch.restart_policy import Next
from recovery.launch.start_method import ProcessStarter
from tests.launch.test_process_keeper import GoneScheduler, keep

NO_PROCESSES = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


class OutOfProcesses(ProcessStarter):
    """Its starts but the first are refused for so many times."""

    def __init__(self, refused: int, error: Exception) -> None:
        super().__init__(StartMethod.SPAWN, None)
        self._refused, self._asked, self._error = refused, 0, error

    @override
    async def begin(self, *command: Any, **how: Any) -> ChildProcess:
        self._asked += 1
        if 1 < self._asked <= 1 + self._refused:
            raise self._error
        return await super().begin(*command, **how)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NO_PROCESSES, "Resource temporarily unavailable"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
        (MemoryError(), "this launcher has no memory left"),
    ],
)
def test_starts_that_never_began_use_up_no_restart_and_are_one_incident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """Processes or memory were short for a while: the job ended by --max_restarts, or with 71."""
    monkeypatch.setattr(restart_policy, "_BACK_OFF_MS", (0,))
    outcome, starts = keep(tmp_path, GoneScheduler(), restarts=1, beginner=OutOfProcesses(5, error))
    assert (outcome.next, starts) == (Next.DONE, ["0 -", "0.2 0"])
    kept = [json.loads(path.read_text())["first"] for path in tmp_path.glob("incident-*.json")]
    statuses = sorted(incident["status"] for incident in kept)
    assert statuses == [f"could not be started ({reason})", "killed by SIGKILL"]


def test_a_process_that_never_begins_again_ends_the_job_when_patience_is_over(tmp_path: Path) -> None:
    outcome, starts = keep(
        tmp_path, GoneScheduler(), beginner=OutOfProcesses(10**9, NO_PROCESSES), patience_ms=0
    )
    assert (outcome.next, outcome.status, starts) == (Next.FAIL, 71, ["0 -"])


_ASKS = """
import os, resource, sys
from pathlib import Path
from recovery.launch.incidents import last_lines
from recovery.launch.kernel_log import KernelLog

log, kernel = Path(sys.argv[1]), KernelLog()
read = len(last_lines(log))
# A file that never says that it is at its end, as the kernel's log while it is full.
kernel._descriptor = os.open("/dev/zero", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_AS, (4096, resource.RLIM_INFINITY))
held = None
try:
    while True:
        held = held, bytes(4_000)
except MemoryError:
    pass
lines, message = last_lines(log), kernel.message_on(1)
held = None
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(read > 1_000, lines, repr(message))
"""


def test_what_a_launcher_without_memory_cannot_read_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "worker_0.log"
    log.write_text("a line\n" * 20_000)
    asks = [sys.executable, "-c", _ASKS, str(log)]
    done = subprocess.run(asks, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("True () ''\n", "")


class _WatchesNoMore(asyncio.SelectorEventLoop):
    """As where this user has used up its watches (fs.epoll.max_user_watches), once it runs."""

    refused = 0

    @override
    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]  # typeshed's TypeVarTuple
        if self.is_running():
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().add_reader(fd, callback, *args)


def test_an_end_that_the_kernel_does_not_watch_is_seen_all_the_same() -> None:
    loop = _WatchesNoMore()

    async def lived() -> int:
        child = spawn(
            [sys.executable, "-c", "raise SystemExit(7)"],
            environment=dict(os.environ),
            conditions={},
            log=subprocess.DEVNULL,
        )
        before = psutil.Process().num_fds()
        status = await await_end(child)
        assert psutil.Process().num_fds() <= before
        return status

    try:
        assert loop.run_until_complete(lived()) == 7
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert loop.refused == 1
