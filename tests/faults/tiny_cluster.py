"""A cluster whose processes run the training without a framework (tiny_job.py), for as long as the test wants."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.faults import tiny_job

_MORE_STEPS = 25
"""From the decision to finish to the last step: more than any rank can be ahead of the newest that is logged."""


class TinyCluster(Cluster):
    """Workers `worker_<n>` and `sched`, torch-free; `finish` ends the training."""

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
        super().__init__(directory, workers=workers, window_s=window_s, environment=environment)
        self.last_step = 0
        self.started_by: dict[str, tuple[str, ...]] = {}
        """By name: the command that starts the process somewhere else, by exec."""

    @override
    def __enter__(self) -> TinyCluster:
        return self

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start (or start again) one process; its log is appended to."""
        role = "MS_SCHED" if name == "sched" else "MS_WORKER"
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.started_by.get(name, ()), sys.executable, tiny_job.__file__],
                cwd=self.directory,
                env={**self._environment, "MS_ROLE": role, "MS_NODE_ID": name, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        self._all.append(process)
        return process

    def finish(self) -> None:
        """Decide the last step a little ahead, wait for the end, and check that every rank has done exactly its steps."""
        self.last_step = self.step() + _MORE_STEPS
        part = self.directory / "finish_at.part"
        part.write_text(str(self.last_step))
        part.rename(self.directory / tiny_job.FINISH_AT)
        self.wait_end(60)
        for rank in range(self.workers):
            found = (self.directory / f"result_{rank}").read_text()
            assert found == tiny_job.value_after(rank, self.last_step), (
                f"rank {rank} ended otherwise\n{self.tails()}"
            )
        checker.check_history(self.directory / "steps.jsonl", last_step=self.last_step)
        checker.check_saves(self.directory / "ckpt", self.directory / "steps.jsonl")

    def generations(self) -> set[int]:
        """In which generations steps were counted."""
        return {line["generation"] for line in checker.lines(self.directory / "steps.jsonl")}

    def plan_count(self) -> int:
        """How often a generation was planned; one more than there were rollbacks."""
        return len(self.events(EventKind.PLAN_MADE))

    def pids(self) -> dict[str, int]:
        """The workers that run."""
        return {
            name: process.pid
            for name, process in self.processes.items()
            if name != "sched" and process.poll() is None
        }

    def resources(self, name: str) -> tuple[int, int]:
        """Resident memory in bytes and number of open descriptors of a process."""
        pid = self.processes[name].pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names only
