"""Undisturbed runs, made once per configuration and test run: what every disturbed one is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.made_once import made_once


class Undisturbed(Protocol):
    """Gives the finished undisturbed run of a configuration."""

    def __call__(self, workers: int = 4, **environment: str) -> Cluster:
        """Run it unless it was run before."""
        ...


class _Make(Protocol):
    __name__: str

    def __call__(self, directory: Path, *, workers: int, environment: dict[str, str]) -> Cluster: ...


def undisturbed_runs(make: _Make, factory: pytest.TempPathFactory) -> Undisturbed:
    """Remember what was run, in whatever process of this test run.

    Args:
        make: a cluster; what one kind of cluster has run is no other's.
        factory: of this process.
    """

    def of(workers: int = 4, **environment: str) -> Cluster:
        def cluster(directory: Path) -> Cluster:
            return make(directory, workers=workers, environment={**environment, "JOB_STEP_MS": "0"})

        def run(directory: Path) -> None:
            with cluster(directory) as running:
                running.start()
                running.wait_end()

        settings = [f"{name}_{value}" for name, value in sorted(environment.items())]
        return cluster(
            made_once(factory, "-".join(["undisturbed", make.__name__, str(workers), *settings]), run)
        )

    return of
