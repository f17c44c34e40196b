"""MindSpore's own scheduler as rank 0 holds it: started early, told its world late, ended with it.

It takes a second and more to import MindSpore. So rank 0 starts it as soon as it knows that it is rank 0, often while it still waits
for a killed peer to be let in, and tells it the world's port when the plan is there.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading

import psutil

from recovery import clock
from recovery.errors import UsageError
from recovery.mindspore import ps_context
from recovery.training import hooks
from recovery.training.session import Session
from recovery.worker.descriptors import close_in_children
from recovery.worker.replace import end_before_exec

_POLL_S = 0.02
_START_LIMIT_MS = 120_000
"""How long it may take to listen: an import from a cold disk takes tens of seconds."""
_pause = threading.Event()


class OwnScheduler:
    """One per generation, and so one per process."""

    def __init__(self) -> None:
        """Start it. It waits for `serve`."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "recovery.mindspore.scheduler_process"], stdin=subprocess.PIPE
        )
        close_in_children(self._pipe)
        end_before_exec(self._end)

    def serve(self, session: Session, host: str, variables: dict[str, str]) -> str:
        """Let it serve this generation's world; returns its address once it listens there.

        Args:
            session: of this entry.
            host: where it is reached.
            variables: what MindSpore reads, but for the port; empty: unset.

        Raises:
            GenerationInterrupted: the generation ended meanwhile.
            UsageError: it does not come up.
        """
        port = _free_port(host)
        variables = {**variables, "MS_SCHED_PORT": str(port)}
        self._tell(json.dumps({"variables": variables, "ps_context": ps_context.given()}))
        give_up_ms = clock.monotonic_ms() + _START_LIMIT_MS
        while not self._listens(port):
            session.check()
            if self._process.poll() is not None or clock.monotonic_ms() > give_up_ms:
                raise UsageError(
                    field="MindSpore's scheduler",
                    reason=f"does not listen on port {port} (exit code {self._process.poll()})",
                    next_step="Look at its lines above in this log; MindSpore must be installed and set up on rank 0's host.",
                )
            _pause.wait(_POLL_S)  # a foreign process can only be asked
        return f"{host}:{port}"

    def dismiss(self) -> None:
        """Every rank is done: it ends after the last one has left, no longer with this process."""
        self._tell("done")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None, "it was asked for"
        with contextlib.suppress(BrokenPipeError):  # whether it lives is asked elsewhere
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _pipe(self) -> list[int]:
        """What a forked child must close: while it is open, MindSpore's scheduler takes this process for alive."""
        assert self._process.stdin is not None, "it was asked for"
        return [self._process.stdin.fileno()]

    def _listens(self, port: int) -> bool:
        try:
            return any(
                connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                for connection in psutil.Process(self._process.pid).net_connections(kind="tcp")
            )
        except psutil.Error:
            return False

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


_early: list[OwnScheduler] = []
_starting = threading.Lock()


def own_scheduler() -> OwnScheduler:
    """The one of this process."""
    with _starting:
        if not _early:
            _early.append(OwnScheduler())
        return _early[0]


def _on_joined(rank: int | None) -> None:
    if rank == 0:
        own_scheduler()


hooks.joined.append(_on_joined)


def _free_port(host: str) -> int:
    """A port that nobody listens on. MindSpore takes none of the kernel's choice (0)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
