"""MindSpore's control plane: the scheduler of its own around which a generation's world is formed, as rank 0 holds it.

MindSpore forms a world only around such a scheduler, and the scheduler takes each worker once. So every generation gets a fresh one:
a child process of rank 0, started early, given its world late, ended with rank 0. The program it runs,
recovery.mindspore.scheduler_program, reads lines from its stdin: the world, when it is to be formed, and one more when every rank is done.

This module does not import MindSpore: the worker proxy of a MindSpore script (recovery.launch.worker_proxy) forms its worlds here too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import psutil

from recovery import clock
from recovery.errors import UsageError
from recovery.training.session import Session
from recovery.transport.local_address import free_port, is_taken
from recovery.worker.exec_in_place import close_in_children, end_before_exec

_logger = logging.getLogger("recovery.mindspore")

MODULE = "recovery.mindspore.scheduler_program"
_POLL_S = 0.02
_START_LIMIT_MS = 120_000
"""How long it may take to listen: an import from a cold disk takes tens of seconds."""
_PORTS_MAX = 5
"""So many that are taken in a row are no coincidence."""
_LISTENS = "listens"
_pause = threading.Event()

_early: list[MindSporeScheduler] = []
_starting = threading.Lock()


class MindSporeScheduler:
    """The scheduler process of one generation."""

    def __init__(self) -> None:
        """Start it. It waits for `serve`."""
        self._is_over = False
        """Its generation is: no further one is started."""
        self._process = self._started()
        close_in_children(self._pipe)
        end_before_exec(self.end)

    def serve(self, session: Session, ps_context: Mapping[str, Any]) -> str:
        """Let it serve this generation's world; returns its address (host:port) once it listens there.

        A port is free when it is chosen, and may be another process's when the scheduler comes to it: then another scheduler takes another one.

        `ps_context` is what the script gave to set_ps_context; empty: nothing.

        Raises:
            GenerationInterrupted: the generation ended meanwhile.
            UsageError: it does not come up.
        """
        taken: list[int] = []
        while True:
            port = free_port(session.host)
            status = self._serves(session, ps_context, port)
            if status is _LISTENS:
                return f"{session.host}:{port}"
            said = f"does not listen on port {port} (exit code {status})"
            if not is_taken(session.host, port):
                break
            taken.append(port)
            if len(taken) == _PORTS_MAX:
                said = f"found ports {', '.join(map(str, taken))} taken by other processes, one after another"
                break
            _logger.warning(
                "event=port_taken another process took port %d before MindSpore's scheduler; another port is tried",
                port,
            )
            self._start_another()
        raise UsageError(
            field="MindSpore's scheduler",
            reason=said,
            next_step="Look at its lines above in this log; MindSpore must be installed and set up on rank 0's host.",
        )

    def _start_another(self) -> None:
        """It takes one world, so another port is another process's."""
        self._kill()
        assert self._process.stdin is not None, "it was asked for"
        # What it has not read goes with it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process = self._started()
        # The generation may have ended while it was started.
        if self._is_over:
            self._kill()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            # A launcher kills what a process that has ended leaves in its session, and this one stays until the last rank has left: a
            # rank whose connection to it closes while MindSpore takes itself down may end with SIGSEGV.
            start_new_session=True,
        )

    def _serves(self, session: Session, ps_context: Mapping[str, Any], port: int) -> int | str | None:
        """Give it the world. `_LISTENS` once it does; else its exit code, None while it runs."""
        variables = _variables_of(
            session, role="MS_SCHED", node_id="sched", host=session.host, port=str(port)
        )
        self._send_line(json.dumps({"variables": variables, "ps_context": dict(ps_context)}))
        give_up_ms = clock.monotonic_ms() + _START_LIMIT_MS
        while not self._listens(port):
            session.check()
            if self._process.poll() is not None or clock.monotonic_ms() > give_up_ms:
                return self._process.poll()
            # MindSpore's program sends no sign that it listens, so it is polled.
            _pause.wait(_POLL_S)
        return _LISTENS

    def dismiss(self) -> None:
        """Every rank is done: it ends after the last one has left, no longer with this process."""
        self._send_line("done")

    def end(self) -> None:
        """Kill it: its generation is over."""
        self._is_over = True
        self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _send_line(self, line: str) -> None:
        assert self._process.stdin is not None, "it was asked for"
        # A scheduler that has died is noticed by `serve`, which polls it.
        with contextlib.suppress(BrokenPipeError):
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


def scheduler_of_this_process() -> MindSporeScheduler:
    """The one scheduler of a process that trains in MindSpore itself, started by the first call.

    To import MindSpore takes a second and more. So rank 0 calls this as soon as it knows that it is rank 0, often while it still
    waits for a killed peer to be let in, and `serve` gives the world when the plan is there.
    """
    with _starting:
        if not _early:
            _early.append(MindSporeScheduler())
        return _early[0]


def start_early(rank: int | None) -> None:
    """Start the scheduler of this process if `rank` is 0. Called in the connection's thread, when this process is let in."""
    if rank == 0:
        scheduler_of_this_process()


def program_address(session: Session) -> str:
    """Start a scheduler for the programs of this generation; gives where it serves them (host:port). Of rank 0.

    Raises:
        GenerationInterrupted, UsageError: as `MindSporeScheduler.serve`.
    """
    scheduler = MindSporeScheduler()
    session.on_generation_end(scheduler.end)
    return scheduler.serve(session, {})


def program_variables(session: Session, address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What this rank's program reads of its world, whose scheduler serves at `address`; empty: unset."""
    host, _, port = address.rpartition(":")
    return _variables_of(session, role="MS_WORKER", node_id=str(session.rank), host=host, port=port)


def _variables_of(session: Session, *, role: str, node_id: str, host: str, port: str) -> dict[str, str]:
    """What MindSpore reads of one process of this generation's world; empty: unset.

    The intervals of 1 s let a worker ask the scheduler again after 1 s instead of 3 to 5: half of the time a world takes to form.
    """
    return {
        "MS_ROLE": role,
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": port,
        "MS_WORKER_NUM": str(session.world_size),
        "MS_SERVER_NUM": "0",
        "MS_NODE_ID": node_id,
        "MS_NODE_TIMEOUT": "1000000",
        "MS_HEARTBEAT_RETRY_TIMEOUT": "900000",
        "MS_RETRY_INTERVAL_LOWER": "1",
        "MS_RETRY_INTERVAL_UPPER": "1",
        "MS_ENABLE_RECOVERY": "",
    }
