"""Kills of a job with standbys, the same bits. Many more: `python -m tests.soak.kills --kills 500`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.kills import many

KILLS = 10


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.timeout(900)
def test_random_kills_with_standbys_end_with_the_same_bits(tmp_path: Path) -> None:
    print(many(tmp_path, workers=3, standbys=2, kills=KILLS, seed=7))
