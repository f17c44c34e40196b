"""Kills of a training that keeps its state in several ways at once, the same bits. Many more: `python -m tests.soak.layouts --kills 300`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.layout_cases import CASES
from tests.soak.layouts import KILLS_OF_A_TRAINING, Soak, plan

OF_CASE = {case.name: case for case in CASES}


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_random_kills_end_with_the_same_bits(tmp_path: Path) -> None:
    found = Soak(tmp_path).train(OF_CASE["shared async memory"], kills=2, seed=101)

    print(found)
    assert found["kills"] == 2


def test_all_cases_come_in_turn_until_there_were_enough_kills() -> None:
    kills = KILLS_OF_A_TRAINING * len(CASES) + 1
    planned = list(plan([*CASES], kills=kills, seed=7))

    assert [case for case, _, _ in planned] == [*CASES, CASES[0]]
    assert sum(count for _, count, _ in planned) == kills
    assert len({seed for _, _, seed in planned}) == len(planned)
