"""A cluster whose workers run lightning_job.py."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.warm.process import TORCH

LIGHTNING = (*TORCH, "lightning", "torchmetrics", "recovery.lightning.trainer")
"""What its processes import of others. Lightning reads the rank then, and recovery.lightning tells it again."""

JOB = Path(__file__).with_name("lightning_job.py")


class LightningCluster(Cluster):
    """Trains with Lightning."""

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return LIGHTNING

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, str(JOB))

    def name_of(self, rank: int) -> str:
        """The worker whose process has noted the rank's newest batch."""
        pid = self._noted(rank)[-1]["pid"]
        return next(name for name, process in self.processes.items() if process.pid == pid)

    def pids(self, rank: int) -> set[int]:
        """Of every process that has trained as this rank."""
        return {line["pid"] for line in self._noted(rank)}

    def epochs(self, rank: int) -> dict[int, dict[str, Any]]:
        """What was logged of each epoch, by whoever has ended it last."""
        found = checker.lines(self.directory / f"epochs_{rank}.jsonl")
        return {line["epoch"]: line for line in found}

    def kept(self) -> list[str]:
        """The files of Lightning's own ModelCheckpoint."""
        return sorted(path.name for path in (self.directory / "kept").glob("*.ckpt"))

    def logged(self) -> list[list[str]]:
        """What Lightning's CSVLogger has of the newest version."""
        versions = (self.directory / "logs/lightning_logs").glob("version_*")
        newest = max(versions, key=lambda path: int(path.name.partition("_")[2]))
        with (newest / "metrics.csv").open(newline="") as file:
            return list(csv.reader(file))

    def run_with_deaths(self) -> int:
        """Start, start again whatever has died by JOB_KILLS, and wait for the end. Returns how many did."""
        self.start()
        deaths = 0

        def ended() -> bool:
            nonlocal deaths
            for name in self.names:
                if self.processes[name].poll() == -9:
                    deaths += 1
                    self.launch(name)
            return all(process.poll() is not None for process in self.processes.values())

        self.wait(ended, "end of all")
        self.wait_end()
        return deaths

    def check_fit_like(self, undisturbed: LightningCluster) -> None:
        """The same batches, weights, logged values, best checkpoints, on every rank."""
        both = f"{self.tails()}\n--- undisturbed\n{undisturbed.tails()}"
        assert self.samples() == undisturbed.samples(), f"samples were used otherwise\n{both}"
        assert [json.loads(said) for said in self.digests()] == [
            json.loads(said) for said in undisturbed.digests()
        ], both
        for rank in range(self.workers):
            assert self.epochs(rank) == undisturbed.epochs(rank), both
        assert self.kept() == undisturbed.kept(), both
        for name in self.names:
            assert not checker.named_beside(self.log(name)), both
        assert self.logged() == undisturbed.logged(), both
        checker.check_history(self.directory / "steps.jsonl", last_step=undisturbed.step())

    def _noted(self, rank: int) -> list[dict[str, Any]]:
        return checker.lines(self.directory / f"samples_{rank}.jsonl")
