"""Ray on this machine: the head here, and each node a network namespace. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster.harness import free_port
from tests.faults.network import Network, network
from tests.pace import wait_for

_RAY = str(Path(sysconfig.get_path("scripts"), "ray"))
_ANY_PORT = ("--min-worker-port=0", "--max-worker-port=0")
"""Of the workers: by default theirs are all from 10002 to 19999, and a head at one of them refuses to start."""
_COUNT = "import ray; ray.init(address={address!r}, log_to_driver=False); print(sum(node['Alive'] for node in ray.nodes()))"


class RayCluster:
    """A head without processors, and nodes with four each, and as many GPUs as far as Ray knows."""

    def __init__(self, hosts: Network, directory: Path, environment: Mapping[str, str]) -> None:
        self._hosts, self._directory = hosts, directory
        # A node that takes longer to start on a busy machine gives up, by default after 30 s.
        self.environment = {
            **environment,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "300",
            # Else a token that some other program has left in this user's home counts here too.
            "RAY_AUTH_MODE": "disabled",
        }
        self.address = f"{hosts.here}:{free_port()}"
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, nodes: int) -> None:
        """Start the head and the first nodes, and wait until Ray knows them."""
        port = self.address.rpartition(":")[2]
        self._start(
            *(-1, (), "--head", f"--port={port}", f"--node-ip-address={self._hosts.here}", "--num-cpus=0"),
            "--include-dashboard=false",
            f"--temp-dir={self._directory}",
        )
        # A driver that comes before it is there waits for minutes.
        wait_for(self._answers, "head of Ray", self._logs)
        for node in range(nodes):
            self.start_node(node)
        wait_for(lambda: self._count() == nodes + 1, "nodes of Ray", self._logs)

    @property
    def nodes(self) -> list[int]:
        """Those that run."""
        return [node for node in self._processes if node >= 0]

    def processes(self, node: int) -> list[int]:
        """All that run there."""
        return self._hosts.processes(node)

    def start_node(self, node: int) -> None:
        """Add a node. One at a time: those of one machine choose the names of their sockets by what is there."""
        where = f"--node-ip-address={self._hosts.address(node)}"
        self._start(
            node, self._hosts.inside(node), f"--address={self.address}", where, "--num-cpus=4", "--num-gpus=4"
        )
        wait_for(lambda: self._has_started(node), f"node {node} of Ray", self._logs)

    def kill_node(self, node: int) -> None:
        """Take a node away, as if its power failed."""
        self._hosts.kill(node)
        self._processes.pop(node).wait()

    def drain_node(self, node: int, within_s: int) -> None:
        """As an autoscaler does for a machine that is to be taken away."""
        code = (
            "import ray, time; from ray._raylet import GcsClient; from ray.core.generated import autoscaler_pb2;"
            f"ray.init(address={self.address!r}, log_to_driver=False);"
            f"[node] = [n['NodeID'] for n in ray.nodes() if n['NodeManagerAddress'] == {self._hosts.address(node)!r}];"
            f"print(GcsClient(address={self.address!r}).drain_node(node,"
            "autoscaler_pb2.DrainNodeReason.Value('DRAIN_NODE_REASON_PREEMPTION'), 'preemption',"
            f"int((time.time() + {within_s}) * 1000)))"
        )
        done = subprocess.run(
            (sys.executable, "-c", code),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert "True" in done.stdout, done.stdout + done.stderr

    def stop(self) -> None:
        """End everything."""
        for node in self._processes:
            if node >= 0:
                self._hosts.end(node)
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, node: int, inside: tuple[str, ...], *options: str) -> None:
        with (self._directory / f"node_{node}.out").open("ab") as out:
            self._processes[node] = subprocess.Popen(
                (
                    *inside,
                    sys.executable,
                    _RAY,
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    *_ANY_PORT,
                    *options,
                ),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        assert self._processes[-1].poll() is None, self._logs()
        asked = (sys.executable, _RAY, "health-check", f"--address={self.address}")
        return (
            subprocess.run(
                asked, env=self.environment, capture_output=True, check=False, timeout=300
            ).returncode
            == 0
        )

    def _count(self) -> int:
        asked = subprocess.run(
            (sys.executable, "-c", _COUNT.format(address=self.address)),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return int(asked.stdout or 0) if asked.returncode == 0 else 0

    def _has_started(self, node: int) -> bool:
        assert self._processes[node].poll() is None, self._logs()
        return "Ray runtime started" in self._log(node)

    def _log(self, node: int) -> str:
        return (self._directory / f"node_{node}.out").read_text(errors="replace")

    def _logs(self) -> str:
        return "\n".join(self._log(node)[-2000:] for node in self._processes)


@contextlib.contextmanager
def ray_cluster(nodes: int, more: int, environment: Mapping[str, str]) -> Iterator[RayCluster]:
    """A cluster of so many nodes, which may get more; ended with all that runs in it."""
    directory = Path(tempfile.mkdtemp(prefix="ray"))
    with network(nodes + more) as hosts:
        cluster = RayCluster(hosts, directory, environment)
        try:
            cluster.start(nodes)
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(directory, ignore_errors=True)
