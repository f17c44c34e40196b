"""Clusters whose processes train with Accelerate or with the Trainer of transformers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

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

    @override
    def __enter__(self) -> AccelerateCluster:
        return self

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

    def survivors_are_themselves(self, *victims: str) -> bool:
        """Is every process that was not killed the one that was started first?"""
        return all(
            os.getpgid(process.pid) == process.pid and process.poll() is None
            for name, process in self.processes.items()
            if name not in victims
        )

    def check_same_bits_as(self, other: Cluster) -> None:
        """Weights, logged lines and samples are those of another run."""
        both = f"{self.tails()}\n--- undisturbed\n{other.tails()}"
        assert self.digests() == other.digests(), f"final weights differ\n{both}"
        assert self.samples() == other.samples(), f"samples were used otherwise\n{both}"


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
