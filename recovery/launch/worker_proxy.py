"""The worker proxy of a program that knows nothing of recovery: `python -m recovery.launch.worker_proxy COMMAND ...`.

The program is started once per generation, with the variables that torchrun exports; when any rank's program fails, all are started
again (the program loads its own newest checkpoint, as under torchrun). The proxy is the node: it registers, waits out a peer's
rejoin window, and stays when its own program has to go because of somebody else's failure.

The proxy reports a failure by ending as the program did: the launcher sees the status and reports it to the scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from recovery import log, process_conditions
from recovery.config.foreign_launchers import SUPERVISED
from recovery.launch import peer_errors, torchrun_world
from recovery.launch.child_process import ChildProcess
from recovery.launch.children import spawn
from recovery.launch.forkserver import proxy_template
from recovery.launch.placement import named_first
from recovery.training.rank_variables import rank_variables
from recovery.training.run import run
from recovery.training.session import Session
from recovery.training.stop_signals import StopSignalReceived
from recovery.worker import exec_in_place

_logger = logging.getLogger("recovery.launch")
_FOLLOWS_S = 1.0
"""After an error of its program the proxy waits so long whether another rank failed first: a lost peer is an error everywhere."""
_PEER_FOLLOWS_S = 5.0
"""So long where the error is that of a lost peer. The peer may still tear itself down: its connections close before it ends."""
_END_S = 5.0
"""From SIGTERM to SIGKILL of a program whose generation is over."""
_LONGEST_STOP_S = 86_400.0
"""Of MS_STOP_GRACE."""
_STDOUT = 1


def main(words: Sequence[str]) -> None:
    """Be the node of the command until the job ends."""
    framework, command = named_first(words)
    world = importlib.import_module(framework.program_world) if framework else torchrun_world
    conditions = process_conditions.note()
    environment = exec_in_place.start_environment()
    # The program speaks to nobody of the job by itself.
    for ours in ("MS_JOB_TOKEN", "MS_FINISHED_FILE"):
        environment.pop(ours, None)

    @run
    def take_part(session: Session) -> None:
        _Program(session, command, environment, conditions, world).run()

    take_part()


class _Program:
    """The program's process in one generation."""

    def __init__(
        self,
        session: Session,
        command: Sequence[str],
        environment: Mapping[str, str],
        conditions: Mapping[str, Any],
        world: ModuleType,
    ) -> None:
        self._session, self._command, self._environment = session, command, environment
        self._conditions = conditions
        self._forming = world
        self._changed = threading.Event()
        """The program has ended, or the generation has."""

    def run(self) -> None:
        """Until the program is done.

        Raises:
            GenerationInterrupted: another rank's program failed; this one was ended.
        """
        session = self._session
        session.on_interrupt(self._changed.set)
        session.refuse_drains("the program runs in a process of its own, which knows nothing of recovery")
        world = self._world()
        unset = [name for name, value in world.items() if not value]
        environment = {**self._environment, **world, SUPERVISED: "1"}
        session.check()
        already_written = peer_errors.written(_STDOUT)
        process = begin_program(
            self._command,
            {name: value for name, value in environment.items() if name not in unset},
            self._conditions,
        )
        threading.Thread(target=self._await_end, args=(process,), daemon=True).start()
        _logger.info(
            "event=program_started generation=%d rank=%d pid=%d method=%s",
            session.generation,
            session.rank,
            process.pid,
            "fork" if process.is_forked else "spawn",
        )
        try:
            self._changed.wait()
            process.end(_END_S)
            session.check()
        except (StopSignalReceived, KeyboardInterrupt):
            # The process that asked ends this one, and the program with it, when its own patience is over.
            process.end(_LONGEST_STOP_S)
            raise
        finally:
            process.end(_END_S)
        if process.status:
            self._failed(process.status, already_written)

    def _await_end(self, process: ChildProcess) -> None:
        process.wait()
        self._changed.set()

    def _failed(self, status: int, already_written: int) -> None:
        """Whose fault was it? A program that was killed is the cause; one that ended with an error may only be the first to notice it.

        Args:
            status: its own.
            already_written: what the log held before it, in bytes.
        """
        session = self._session
        # NCCL's watchdog aborts the process that waits for a lost peer.
        by_itself = status > 0 or status == -signal.SIGABRT
        lost_peer = by_itself and peer_errors.names_lost_peer(_STDOUT, already_written)
        if (status > 0 or lost_peer) and session.recovery_enabled:
            interrupted = threading.Event()
            session.on_interrupt(interrupted.set)
            session.check()
            interrupted.wait(_PEER_FOLLOWS_S if lost_peer else _FOLLOWS_S)
            session.check()
        _end_like(status)

    # --- the generation's world ------------------------------------------------------------------------------------------

    def _world(self) -> dict[str, str]:
        """Every generation meets on a port of its own: what an earlier world has left at its store reaches nobody."""
        session = self._session
        if session.rank == 0:
            address = self._forming.program_address(session)
            session.publish_rendezvous(address)
        else:
            address = session.await_rendezvous()
        return {**self._ranks(), **self._forming.program_variables(session, address, self._environment)}

    def _ranks(self) -> dict[str, str]:
        session = self._session
        role = {"ROLE_RANK": str(session.rank)} if "TORCHELASTIC_RUN_ID" in self._environment else {}
        return {
            **role,
            **rank_variables(session),
            "RANK_ID": str(session.rank),
            "RANK_SIZE": str(session.world_size),
            "DEVICE_ID": str(session.local_rank),
            "TORCHELASTIC_RESTART_COUNT": str(session.generation - 1),
        }


def begin_program(
    command: Sequence[str], environment: Mapping[str, str], conditions: Mapping[str, Any]
) -> ChildProcess:
    """Start it from the main thread: forked where it can be, else spawned, and the log says why where that is not so for all programs.

    Args:
        command: of the person who started the job.
        environment: all of it.
        conditions: that it runs under (recovery.process_conditions).

    Raises:
        OSError: it could not be started.
    """
    begun = proxy_template.begin_program(command, environment)
    if isinstance(begun, int):
        return ChildProcess(begun)
    if begun is not None:
        _logger.warning("event=program_spawned reason=%s", log.quoted(f"its template: {begun.reason}"))
    return spawn(command, environment=environment, conditions=conditions, stdin=None)


def _end_like(status: int) -> NoReturn:
    """Leave as the program left, so that a parent that waits sees its status."""
    log.flush_streams()
    if status < 0:
        # The program's own core is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status > 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1:])
