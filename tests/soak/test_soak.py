"""Two minutes of faults, the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.soak import soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
"""`SOAK_SECONDS=3600 pytest tests/soak` makes it any length."""
SEED = int(os.environ.get("SOAK_SEED", "1"))


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS + 240)
def test_eight_workers_under_a_fault_every_ten_seconds_end_with_the_same_bits(tmp_path: Path) -> None:
    print(soak(tmp_path, workers=8, seconds=SECONDS, seed=SEED))
