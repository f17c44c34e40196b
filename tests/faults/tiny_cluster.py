"""A cluster whose processes run the training without a framework (tiny_job.py), for as long as the test wants."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.faults import tiny_job
from tests.warm.process import PLAIN


class TinyCluster(Cluster):
    """Workers `worker_<n>` and `sched`, torch-free; `finish` ends the training."""

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return PLAIN

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, tiny_job.__file__)

    def finish(self) -> None:
        """Have the last step decided, wait for the end, and check that every rank has done exactly its steps."""
        (self.directory / tiny_job.FINISH).touch()
        self.wait_end()
        last_step = int((self.directory / tiny_job.FINISH_AT).read_text())
        for rank in range(self.workers):
            found = (self.directory / f"result_{rank}").read_text()
            assert found == tiny_job.value_after(rank, last_step), (
                f"rank {rank} ended otherwise\n{self.tails()}"
            )
        checker.check_history(self.directory / "steps.jsonl", last_step=last_step)
        checker.check_saves(self.directory / "ckpt", self.directory / "steps.jsonl")

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
