"""What the cluster tests share."""

from __future__ import annotations

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed, undisturbed_runs


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """PyTorch trainings that nothing happens to."""
    return undisturbed_runs(Cluster, tmp_path_factory)
