"""A job that `recovery msrun` starts: real processes, the training without a framework."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from typing_extensions import override

from tests.cluster.small_cluster import SCRIPT, PlacedCluster
from tests.warm.process import PLAIN

LAUNCHER = "launcher"


class LaunchedCluster(PlacedCluster):
    """The launcher is the one process of ours; what it starts is found by the environment it gives."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        environment: Mapping[str, str] | None = None,
        imports: tuple[str, ...] = PLAIN,
    ) -> None:
        """Choose the shape; `start` starts the launcher.

        Args:
            directory: everything lies here.
            workers: how many.
            environment: further variables of the launcher.
            imports: what its template and its scheduler import of others.
        """
        super().__init__(directory, workers=workers, environment=environment)
        del self._environment["MS_TOPO_TIMEOUT"]
        self.logs = directory / "logs"
        self._imports = imports

    @override
    def start(
        self,
        *flags: str,
        script: str = SCRIPT,
        arguments: Sequence[str] = (),
        name: str = LAUNCHER,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start a launcher: joined unless a flag says otherwise; `prefix` starts it somewhere else, by exec."""
        command = [*prefix, sys.executable, "-m", "recovery", "msrun", f"--worker_num={self.workers}"]
        command += [f"--master_port={self.port}", "--log_dir=logs", "--join=True", *flags, script, *arguments]
        self.spawn(name, command, self._environment, imports=self._imports, has_warm_children=True)

    def pid_of(self, node_id: str) -> int:
        """The living process that the launcher has started for a node: `sched`, or a rank."""
        self.wait(lambda: self.find(node_id), f"process of {node_id}")
        return self.find(node_id)

    def living(self) -> list[int]:
        """Processes of this job, the launcher apart."""
        return [pid for pid, _ in self.members()]

    def kill_node(self, node_id: str) -> None:
        """SIGKILL."""
        os.kill(self.pid_of(node_id), signal.SIGKILL)

    def log_of(self, name: str) -> str:
        """What the launcher has kept of a process's output."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def find(self, node_id: str) -> int:
        """As `pid_of`; 0 where there is none in this moment."""
        return next((pid for pid, node in self.members() if node == node_id), 0)

    def members(self) -> list[tuple[int, str]]:
        """Process id and node id of all that run in this moment, the oldest first."""
        found: list[tuple[float, int, str]] = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if (
                    environment.get("MS_SCHED_PORT") == str(self.port)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append((process.create_time(), process.pid, environment.get("MS_NODE_ID", "")))
            except (psutil.Error, OSError):
                continue
        # A process of a node comes before what it starts itself.
        return [(pid, node) for _, pid, node in sorted(found)]
