"""Clusters whose processes train with Accelerate or with the Trainer of transformers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed, undisturbed_runs
from tests.warm.process import TORCH

HERE = Path(__file__).parent


class AccelerateCluster(Cluster):
    """Runs accelerate_job.py."""

    job = "accelerate_job.py"

    def __init__(
        self, directory: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
    ) -> None:
        """Choose the shape; `start` starts all."""
        super().__init__(directory, workers=workers, environment=environment)

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return (*TORCH, "accelerate")

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, str(HERE / self.job))

    def run(self) -> None:
        """Start everything and wait for its end."""
        self.start()
        self.wait_end()

    def wait_held(self) -> None:
        """Wait until every rank stands where the job was told to wait."""
        self.wait(lambda: len(list(self.directory.glob("at_*"))) == self.workers, "all ranks at their place")

    def check_survivors(self, *victims: str) -> None:
        """Every process that was not killed has entered its function more than once."""
        survivors = {process.pid for name, process in self.processes.items() if name not in victims}
        entries = [
            line["ids"][0]
            for rank in range(self.workers)
            for line in checker.lines(self.directory / f"entries_{rank}.jsonl")
        ]
        once = {pid for pid in survivors & set(entries) if entries.count(pid) == 1}
        assert not once, f"survivors were replaced\n{self.tails()}"
        for name in self.names:
            assert not checker.named_beside(self.log(name)), self.tails()

    def check_same_bits_as(self, other: Cluster) -> None:
        """Weights, logged lines and samples are those of another run."""
        both = f"{self.tails()}\n--- undisturbed\n{other.tails()}"
        assert self.digests() == other.digests(), f"final weights differ\n{both}"
        assert self.samples() == other.samples(), f"samples were used otherwise\n{both}"
        for path in sorted(other.directory.glob("evaluations_*.jsonl")):
            mine = checker.samples(self.directory / path.name)
            assert mine == checker.samples(path), f"evaluations differ\n{both}"


def killed(
    cluster: AccelerateCluster, undisturbed: Undisturbed, victim: str, back_to: int, **job: str
) -> None:
    """Kill where the job waits, which takes all back to this step, and compare with the run that nothing happens to."""
    cluster.start()
    cluster.wait_held()
    if back_to:
        cluster.wait_commit(back_to)
    cluster.kill_and_relaunch(victim)
    cluster.wait_end()
    cluster.check_survivors(victim)
    cluster.check_same_bits_as(undisturbed(workers=cluster.workers, **job))
    assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, back_to]


class TransformersCluster(AccelerateCluster):
    """Runs transformers_job.py."""

    job = "transformers_job.py"

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return (*super().imports, "transformers.trainer", "transformers.training_args", "safetensors.torch")


def arguments(**chosen: Any) -> dict[str, str]:
    """Variables of a job with these TrainingArguments."""
    return {"JOB_ARGUMENTS": json.dumps(chosen, sort_keys=True)}


@pytest.fixture(scope="session")
def undisturbed_trainer(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trainings with the Trainer that nothing happens to."""
    return undisturbed_runs(TransformersCluster, tmp_path_factory)


@pytest.fixture(scope="session")
def undisturbed_accelerate(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trainings with Accelerate that nothing happens to."""
    return undisturbed_runs(AccelerateCluster, tmp_path_factory)
