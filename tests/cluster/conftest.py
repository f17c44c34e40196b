"""Undisturbed runs, made once per configuration: what every disturbed one is compared with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.harness import Cluster

Undisturbed = Callable[..., Cluster]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Give the finished undisturbed run of a configuration."""
    made: dict[tuple[object, ...], Cluster] = {}

    def of(workers: int = 4, **environment: str) -> Cluster:
        key = (workers, *sorted(environment.items()))
        if key not in made:
            cluster = Cluster(
                tmp_path_factory.mktemp("undisturbed"),
                workers=workers,
                environment={**environment, "JOB_STEP_MS": "0"},
            )
            with cluster:
                cluster.start()
                cluster.wait_end()
            made[key] = cluster
        return made[key]

    return of
