"""Real processes that form a real cluster, and what a test does to them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil
from typing_extensions import Self

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.paths import companion, scheduler_path
from recovery.store.reader import StoredEvent, read_events
from tests.cluster import checker
from tests.pace import HANG_S, wait_for
from tests.warm.process import TORCH, Process

_LOWEST_PORT = 15_000

JOB = Path(__file__).with_name("job.py")
ROLES = {"sched": "MS_SCHED", "worker": "MS_WORKER", "server": "MS_PSERVER", "standby": "MS_WORKER"}


_TICK_NS = 50_000_000
_KEPT_S = 1.0
"""How long events that were read are given again without a look. SQLite writes, syncs, and only then shows a commit: who reads before that
sees an older state in files that change no more."""


class _File(NamedTuple):
    """What changes when somebody writes."""

    inode: int
    size: int
    written_ns: int


def _written(recovery_path: Path) -> tuple[_File, ...]:
    """The files of the scheduler's store."""
    files = []
    for path in (scheduler_path(recovery_path), companion(scheduler_path(recovery_path), "-wal")):
        with contextlib.suppress(OSError):
            found = path.stat()
            files.append(_File(found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(files)


class Cluster:
    """A scheduler and its workers. Use as a context manager: nothing outlives it."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 4,
        window_s: float = 1.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Choose the shape; `start` starts all.

        Args:
            directory: everything lies here.
            workers: how many.
            window_s: MS_REJOIN_WINDOW.
            environment: further variables of every process.
        """
        self.directory, self.workers, self.port = directory, workers, free_port()
        self._environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("MS_", "JOB_", "COV_", "COVERAGE"))
            },
            "MS_WORKER_NUM": str(workers),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(self.port),
            "MS_ENABLE_RECOVERY": "1",
            "MS_RECOVERY_PATH": "recovery",
            "MS_REJOIN_WINDOW": str(window_s),
            "MS_STEP_LOG": "steps.jsonl",
            # Jobs are held by a test for as long as it takes.
            "MS_STEP_TIMEOUT": "0",
            "MS_TOPO_TIMEOUT": "120",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(JOB.parents[2]),
            **(environment or {}),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self.started_by: dict[str, tuple[str, ...]] = {}
        """By name: the command that starts the process somewhere else, by exec."""
        self._events_read: Sequence[StoredEvent] = ()
        self._files_read: tuple[_File, ...] | None = None
        """The store's files as they were when the events were read; None: they may have changed since."""
        self._read_at_s = 0.0

    def leave_out(self, name: str) -> None:
        """Start processes without a variable that tests have set otherwise."""
        del self._environment[name]

    # --- acting --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers and the scheduler."""
        for name in (*self.names, "sched"):
            self.launch(name)

    @property
    def names(self) -> list[str]:
        """Node ids of the workers."""
        return [f"worker_{number}" for number in range(self.workers)]

    @property
    def command(self) -> Sequence[str]:
        """How each process is started."""
        return (sys.executable, str(JOB))

    @property
    def imports(self) -> tuple[str, ...]:
        """What each process imports of others."""
        return TORCH

    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start (or start again) one process, of the role that its name begins with; its log is appended to."""
        role = ROLES[name.partition("_")[0]]
        return self.spawn(
            name,
            [*self.started_by.get(name, ()), *self.command],
            {**self._environment, "MS_ROLE": role, "MS_NODE_ID": name, **environment},
            imports=self.imports,
        )

    def spawn(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        imports: tuple[str, ...],
        has_warm_children: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a process in the job's directory, in a session of its own; its log is appended to. The last two are as of `Process`."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process: Process[bytes] = Process(
                command,
                imports=imports,
                has_warm_children=has_warm_children,
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        self._all.append(process)
        return process

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process that was started last under this name."""
        os.kill(self.processes[name].pid, number)

    def kill(self, *names: str) -> None:
        """SIGKILL, all in one moment."""
        for name in names:
            self.signal(name, signal.SIGKILL)
        for name in names:
            self.processes[name].wait(HANG_S)

    def kill_and_relaunch(self, *names: str) -> None:
        """SIGKILL, then start again at once."""
        self.kill(*names)
        for name in names:
            self.launch(name)

    def go_on(self) -> None:
        """Let the job count the step that JOB_HELD_STEP names, and end."""
        (self.directory / "go_on").touch()

    # --- looking -------------------------------------------------------------------------------------------------------

    def log(self, name: str) -> str:
        """Everything a process has printed, over all its starts."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def step(self, generation: int = 0) -> int:
        """Newest step that any rank has applied in this generation or a later one."""
        path = self.directory / "steps.jsonl"
        found = checker.lines(path) if path.exists() else []
        return max((line["step"] for line in found if line["generation"] >= generation), default=0)

    def step_of_all(self) -> int:
        """Newest step that every rank has applied, in any generation."""
        path = self.directory / "steps.jsonl"
        newest: dict[int, int] = {}
        for line in checker.lines(path) if path.exists() else []:
            newest[line["rank"]] = max(line["step"], newest.get(line["rank"], 0))
        return min(newest.values()) if len(newest) == self.workers else 0

    def generations(self) -> set[int]:
        """In which generations steps were counted."""
        return {line["generation"] for line in checker.lines(self.directory / "steps.jsonl")}

    def events(self, kind: EventKind | None = None, node: str | None = None) -> list[StoredEvent]:
        """The stored events so far."""
        return [
            stored
            for stored in self._stored_events()
            if kind in (None, stored.event.kind) and node in (None, stored.event.node_id)
        ]

    def _stored_events(self) -> Sequence[StoredEvent]:
        """All of them. The store is opened again only when its files have changed: a test that waits asks very often."""
        path = self.directory / self._environment["MS_RECOVERY_PATH"]
        began_ns, began_s, files = time.time_ns(), time.monotonic(), _written(path)
        if files == self._files_read and began_s < self._read_at_s + _KEPT_S:
            return self._events_read
        self._read_at_s = began_s
        try:
            self._events_read = read_events(path, limit=100_000)
        except RecoveryError:
            # No store yet.
            self._events_read = ()
        # A later write in the same tick of the file system's clock would leave the same times.
        is_settled = all(began_ns - file.written_ns > _TICK_NS for file in files)
        self._files_read = files if is_settled else None
        return self._events_read

    def reasons_lost(self, node: str | None = None) -> list[str]:
        """Why nodes were lost, by what is known in the end: their launchers may have told how the processes ended."""
        told = {
            (stored.event.node_id, stored.event.incarnation): stored.event.reason
            for stored in self.events(EventKind.PROCESS_ENDED, node)
        }
        lost = [stored.event for stored in self.events(EventKind.NODE_LOST, node)]
        return [told.get((event.node_id, event.incarnation), event.reason) for event in lost]

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Wait for something to become true, or fail with everything that was printed."""
        wait_for(until, what, self.tails)

    def wait_step(self, step: int, *, generation: int = 0) -> None:
        """Wait until some rank has applied a step."""
        self.wait(lambda: self.step(generation) >= step, f"step {step} of generation {generation}")

    def wait_event(self, kind: EventKind, node: str | None = None, *, count: int = 1) -> None:
        """Wait until the event log has so many events of a kind."""
        self.wait(lambda: len(self.events(kind, node)) >= count, f"{kind.value} of {node or 'anyone'}")

    def wait_commit(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one is common to all ranks: a step that is applied is not saved yet."""
        self.wait(
            lambda: any(
                (found.event.step or 0) >= step for found in self.events(EventKind.CHECKPOINT_COMMITTED)
            ),
            f"commit of step {step}",
        )

    def wait_end(self, *, also: Collection[int] = ()) -> None:
        """Wait until every process that was started last under its name has ended with exit code 0, or one of `also`."""
        self.wait(
            lambda: all(process.poll() is not None for process in self.processes.values()),
            "end of all",
        )
        codes = {name: process.returncode for name, process in self.processes.items()}
        assert 0 in codes.values(), f"exit codes {codes}\n{self.tails()}"
        assert set(codes.values()) <= {0, *also}, f"exit codes {codes}\n{self.tails()}"

    def digests(self) -> list[str]:
        """SHA-256 of the final weights by rank."""
        return [(self.directory / f"digest_{rank}").read_text() for rank in range(self.workers)]

    def samples(self) -> list[dict[int, list[int]]]:
        """Sample ids that counted, by rank and step."""
        return [checker.samples(self.directory / f"samples_{rank}.jsonl") for rank in range(self.workers)]

    def check_same_as(self, undisturbed: Cluster, *, live: bool = False, paused: int | None = None) -> None:
        """The proof: same bits on every rank, every sample used as in the undisturbed run, every step counted once."""
        both = f"{self.tails()}\n--- undisturbed\n{undisturbed.tails()}"
        assert self.samples() == undisturbed.samples(), f"samples were used otherwise\n{both}"
        assert self.digests() == undisturbed.digests(), f"final weights differ\n{both}"
        checker.check_history(
            self.directory / "steps.jsonl", last_step=undisturbed.step(), live=live, paused=paused
        )
        checker.check_saves(self.directory / "ckpt", self.directory / "steps.jsonl")

    def tails(self) -> str:
        """The last lines of every log."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.directory.glob("*.log"))
        )

    # --- ending --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._all:
            # A process that syncs a file ends when the disk lets it.
            process.wait(HANG_S)
        # A killed grandchild is not ours to wait for.
        wait_for(lambda: not self._left(), "end of all that the test started", lambda: str(self._left()))

    def _left(self) -> list[int]:
        sessions = {process.pid for process in self._all}
        return [
            found.pid
            for found in psutil.process_iter()
            if _session_of(found.pid) in sessions and _runs(found)
        ]


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return 0


def free_port() -> int:
    """A port that nobody listens on. Not of those that the kernel gives away by itself, and not soon given to another test."""
    given_away = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with Path(tempfile.gettempdir(), f"recovery-tests-port-{os.getuid()}").open("a+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        newest = int(turn.read() or 0)
        ports = range(_LOWEST_PORT, given_away)
        first = newest + 1 if newest + 1 in ports else _LOWEST_PORT
        port: int = next(port for port in (*range(first, given_away), *ports, 0) if _is_free(port))
        turn.truncate(0)
        turn.write(str(port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
