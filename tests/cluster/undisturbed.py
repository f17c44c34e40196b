"""Undisturbed runs, made once per configuration: what every disturbed one is compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.cluster.harness import Cluster


class Undisturbed(Protocol):
    """Gives the finished undisturbed run of a configuration."""

    def __call__(self, workers: int = 4, **environment: str) -> Cluster:
        """Run it unless it was run before."""
        ...


class _Make(Protocol):
    def __call__(self, directory: Path, *, workers: int, environment: dict[str, str]) -> Cluster: ...


def undisturbed_runs(make: _Make, directory: Callable[[], Path], timeout_s: float) -> Undisturbed:
    """Remember what was run.

    Args:
        make: a cluster.
        directory: a new one for every run.
        timeout_s: for one run.
    """
    made: dict[tuple[object, ...], Cluster] = {}

    def of(workers: int = 4, **environment: str) -> Cluster:
        key = (workers, *sorted(environment.items()))
        if key not in made:
            cluster = make(directory(), workers=workers, environment={**environment, "JOB_STEP_MS": "0"})
            with cluster:
                cluster.start()
                cluster.wait_end(timeout_s)
            made[key] = cluster
        return made[key]

    return of
