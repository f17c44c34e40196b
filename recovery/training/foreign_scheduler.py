"""A framework's own scheduler as rank 0 holds it: a child process, started early, told its world late, ended with it.

MindSpore forms a world only around a scheduler of its own, and takes each once. Its program, recovery.mindspore.scheduler_program,
reads lines from its stdin: the world, when it is to be formed, and one more when every rank is done.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import psutil

from recovery import clock
from recovery.errors import UsageError
from recovery.training.session import Session
from recovery.worker.descriptors import close_in_children
from recovery.worker.exec_in_place import end_before_exec

MODULE = "recovery.mindspore.scheduler_program"
_POLL_S = 0.02
_START_LIMIT_MS = 120_000
"""How long it may take to listen: an import from a cold disk takes tens of seconds."""
_pause = threading.Event()


class ForeignScheduler:
    """One per generation."""

    def __init__(self) -> None:
        """Start it. It waits for `serve`."""
        self._process = subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter
            [sys.executable, "-m", MODULE], stdin=subprocess.PIPE
        )
        close_in_children(self._pipe)
        end_before_exec(self.end)

    def serve(self, session: Session, variables: Mapping[str, str], ps_context: Mapping[str, Any]) -> str:
        """Let it serve this generation's world; returns its address (host:port) once it listens there.

        Args:
            session: of this entry.
            variables: what MindSpore reads, but for the port; empty: unset.
            ps_context: what the script gave to set_ps_context; empty: nothing.

        Raises:
            GenerationInterrupted: the generation ended meanwhile.
            UsageError: it does not come up.
        """
        port = free_port(session.host)
        self._tell(
            json.dumps(
                {"variables": {**variables, "MS_SCHED_PORT": str(port)}, "ps_context": dict(ps_context)}
            )
        )
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
        return f"{session.host}:{port}"

    def dismiss(self) -> None:
        """Every rank is done: it ends after the last one has left, no longer with this process."""
        self._tell("done")

    def end(self) -> None:
        """Its generation is over."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

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


def variables_of(session: Session, *, role: str, node_id: str, host: str) -> dict[str, str]:
    """What MindSpore reads of one process of this generation's world, but for the port; empty: unset."""
    return {
        "MS_ROLE": role,
        "MS_SCHED_HOST": host,
        "MS_WORKER_NUM": str(session.world_size),
        "MS_SERVER_NUM": "0",
        "MS_NODE_ID": node_id,
        "MS_NODE_TIMEOUT": "1000000",
        "MS_HEARTBEAT_RETRY_TIMEOUT": "900000",
        "MS_RETRY_INTERVAL_LOWER": "1",  # its questions are then answered in 1 s instead of 3 to 5: half of its start
        "MS_RETRY_INTERVAL_UPPER": "1",
        "MS_ENABLE_RECOVERY": "",
    }


def free_port(host: str) -> int:
    """A port of this machine that nobody listens on right now, for those that take none of the kernel's choice (0).

    Args:
        host: an address; it says whether IPv4 or IPv6 is meant.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
