"""What the MindSpore tests share."""

from __future__ import annotations

import pytest

from tests.cluster.undisturbed import Undisturbed, undisturbed_runs
from tests.mindspore.mindspore_cluster import MindSporeCluster


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """MindSpore trainings that nothing happens to."""
    return undisturbed_runs(MindSporeCluster, tmp_path_factory)
