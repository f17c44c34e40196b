"""The trainings of the soak over all layouts: what lies where, and the processes that train so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from typing_extensions import override

from tests.cluster import checker, folder_job, job, sharded_job
from tests.cluster.harness import Cluster
from tests.faults.disks import DiskPerHost

HELD_STEP = 72
"""Not counted before all blows are struck. Neither it nor the step before is saved, so steps are counted behind every return."""
_SAVES = {"JOB_SAVE_STEPS": "4", "JOB_STEP_MS": "40", "JOB_HELD_STEP": str(HELD_STEP)}


class Case(NamedTuple):
    """One way to keep a state."""

    name: str
    script: ModuleType
    workers: int
    state: Mapping[str, str]
    """Variables that decide the bits: an undisturbed training has these alone."""
    kept: Mapping[str, str] = {}
    """Variables that only decide where the state is kept."""
    has_memory: bool = False
    """Steps between two saves lie in memory."""
    has_hosts: bool = False
    """Each worker is on a host with a disk of its own, which is lost at times; the others hold copies."""


_TWO = {"JOB_EPOCHS": "2"}
_SHARED = {"JOB_LAYOUT": "shared"}
_OWN = {"JOB_EPOCHS": "3", "JOB_OWN": "per_rank"}
_ASYNC = {"JOB_ASYNC": "1"}
_FSDP = {**_TWO, "JOB_MESH": "fsdp"}
_HSDP = {"JOB_EPOCHS": "4", "JOB_MESH": "hsdp"}

CASES = (
    Case("rank", job, 2, _TWO),
    Case("shared", job, 3, _OWN, _SHARED),
    Case("fsdp", sharded_job, 2, _FSDP),
    Case("memory", job, 2, _TWO, has_memory=True),
    Case("copies", job, 2, _TWO, has_hosts=True),
    Case("folders", folder_job, 2, _TWO),
    Case("rank async", job, 2, _TWO, _ASYNC),
    Case("shared async memory", job, 3, _OWN, {**_SHARED, **_ASYNC}, has_memory=True),
    Case("fsdp memory", sharded_job, 2, _FSDP, has_memory=True),
    Case("fsdp copies", sharded_job, 2, _FSDP, has_hosts=True),
    Case("hsdp", sharded_job, 4, _HSDP),
    Case("copies async memory", job, 2, _TWO, _ASYNC, has_memory=True, has_hosts=True),
)


class OneHost(Cluster):
    """Workers of one case that share their disk."""

    def __init__(self, directory: Path, case: Case, environment: Mapping[str, str]) -> None:
        """Choose the shape; `start` starts all.

        Args:
            directory: everything lies here.
            case: what is trained.
            environment: further variables of every process.
        """
        self._script = str(case.script.__file__)
        super().__init__(directory, workers=case.workers, window_s=0.0, environment=environment)

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, self._script)

    @override
    def check_same_as(self, undisturbed: Cluster, *, live: bool = False, paused: int | None = None) -> None:
        if self._script != folder_job.__file__:
            super().check_same_as(undisturbed, live=live, paused=paused)
            return
        # A framework names its folders itself: their manifests lie elsewhere.
        assert self.digests() == undisturbed.digests(), f"final weights differ\n{self.tails()}"
        assert self.samples() == undisturbed.samples(), "samples were used otherwise"
        checker.check_history(
            self.directory / "steps.jsonl", last_step=undisturbed.step(), live=live, paused=paused
        )


class HostPerWorker(OneHost, DiskPerHost):
    """Each worker at a loopback address of its own, with a disk that can be lost."""

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        if name.startswith("worker"):
            environment = {"MS_WORKER_IP": f"127.0.0.{int(name.rpartition('_')[2]) + 1}", **environment}
        return super().launch(name, **environment)


def disturbed(directory: Path, case: Case, base: Path) -> OneHost:
    """The processes of a case that something will happen to.

    Args:
        directory: empty.
        case: what is trained.
        base: on a tmpfs; checkpoints in memory lie below.
    """
    environment = {**_SAVES, **case.state, **case.kept}
    if case.has_memory:
        environment |= {"MS_MEMORY_CHECKPOINT_STEPS": "3", "MS_MEMORY_CHECKPOINT_PATH": str(base)}
    if case.has_hosts:
        return HostPerWorker(directory, case, {**environment, "MS_CHECKPOINT_COPIES": "1"})
    return OneHost(directory, case, environment)


def undisturbed(directory: Path, case: Case) -> OneHost:
    """The processes of the same training that nothing will happen to, as simply kept as possible."""
    return OneHost(directory, case, {**case.state, "JOB_STEP_MS": "0"})
