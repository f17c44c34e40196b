"""A cluster whose processes train with the real MindSpore."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from tests.cluster.harness import Cluster
from tests.warm.process import MINDSPORE

JOB = Path(__file__).with_name("job.py")


def held(step: int) -> dict[str, str]:
    """Variables of a job that does not end before the test says so; the last step is the 75th of four ranks, the 150th of two."""
    return {"JOB_HELD_STEP": str(step)}


class MindSporeCluster(Cluster):
    """Runs job.py."""

    def __init__(
        self, directory: Path, *, workers: int = 4, environment: Mapping[str, str] | None = None
    ) -> None:
        """Choose the shape; `start` starts all.

        Args:
            directory: everything lies here.
            workers: how many.
            environment: further variables of every process.
        """
        super().__init__(
            directory, workers=workers, environment={"MS_NODE_TIMEOUT": "60", **(environment or {})}
        )

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return MINDSPORE

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, str(JOB))

    def run(self) -> None:
        """Start everything and wait for its end."""
        self.start()
        self.wait_end()
