"""A cluster whose workers are on hosts of their own, each with its own disk, which can be lost with all that is on it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from typing_extensions import override

from recovery.core.ids import NodeId
from recovery.core.policy.ranks import first_id
from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.faults.tiny_cluster import TinyCluster

TOKEN = "what-every-process-of-these-tests-knows"
"""The recovery paths are not shared, so the job's token is not either."""


class DiskPerHost(Cluster):
    """`worker_<n>` keeps its store and its copies under disks/worker_<n>, its checkpoints under ckpt/<n>; ranks are numbers of workers."""

    def disk(self, name: str) -> Path:
        """Its recovery path: of its host, under whatever id it is started there."""
        return self.directory / "disks" / first_id(NodeId(name))

    def saves(self, name: str) -> Path:
        """Where it saves."""
        return self.directory / "ckpt" / name.rpartition("_")[2]

    def copies(self, holder: str, of: str) -> list[Path]:
        """The copies of one worker's checkpoints on another one's disk, newest last."""
        rank = of.rpartition("_")[2]
        found = self.disk(holder).glob(f"workers/{holder}.copies/*/run-*/rank-{rank}/*.ckpt")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        own = {"MS_JOB_TOKEN": TOKEN}
        if name.startswith("worker"):
            own["MS_RECOVERY_PATH"] = str(self.disk(name))
        return super().launch(name, **{**own, **environment})

    def lose_disk(self, name: str) -> None:
        """The host is gone with its disk: the process is killed, and nothing of what it had written is left."""
        self.kill(name)
        shutil.rmtree(self.disk(name))
        shutil.rmtree(self.saves(name))

    def launch_in_place_of(self, name: str, fresh: str) -> None:
        """Start a process in the place of a killed one under a fresh id, as a launcher does."""
        del self.processes[name]
        self.launch(fresh, MS_REPLACES=name)

    def wait_copied(self, count: int = 1) -> int:
        """Wait until so many steps have all their copies; gives the newest of them."""
        self.wait_event(EventKind.CHECKPOINT_COPIED, count=count)
        return max(stored.event.step or 0 for stored in self.events(EventKind.CHECKPOINT_COPIED))

    def stop_all_copied(self) -> int:
        """Stop all workers at a moment when no copy is on its way; gives the newest step, of which all copies are there."""
        steps: list[int] = []

        def is_copied() -> bool:
            for name in self.names:
                self.signal(name, signal.SIGSTOP)
            kinds = (EventKind.CHECKPOINT_COMMITTED, EventKind.CHECKPOINT_COPIED)
            steps[:] = [max((one.event.step or 0 for one in self.events(kind)), default=0) for kind in kinds]
            if steps[0] == steps[1] > 0:
                return True
            for name in self.names:
                self.signal(name, signal.SIGCONT)
            return False

        self.wait(is_copied, "moment without a copy on its way")
        return steps[0]

    def reasons(self, kind: EventKind) -> str:
        """What the events of a kind say."""
        return "\n".join(f"{one.event.details} {one.event.reason}" for one in self.events(kind))


class TinyHosts(DiskPerHost, TinyCluster):
    """The training without a framework, each worker at a loopback address of its own."""

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        if name.startswith("worker"):
            number = int(first_id(NodeId(name)).rpartition("_")[2])
            environment = {"MS_WORKER_IP": f"127.0.0.{number + 1}", **environment}
        return super().launch(name, **environment)
