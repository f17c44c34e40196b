"""Every planted bug is caught. The whole table is printed by `make planted`."""

from __future__ import annotations

import pytest

from tests.planted.bugs import BUGS
from tests.planted.run import part_of
from tests.untraced import ROOT, run_module

PARTS = 12
"""Each keeps one core busy, so they run beside tests that mostly wait."""


def test_the_table_is_well_made() -> None:
    assert len(BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert [bug.name for bug in BUGS if bug.occurrences(ROOT / "recovery") != 1] == [], (
        "the code has moved on"
    )
    parts = [part_of(BUGS, number, PARTS) for number in range(1, PARTS + 1)]
    assert sorted(bug.name for part in parts for bug in part) == sorted(bug.name for bug in BUGS)


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("part", [f"{number}/{PARTS}" for number in range(1, PARTS + 1)])
def test_every_planted_bug_is_caught(part: str) -> None:
    done = run_module(f"tests.planted.run --part {part} --jobs 1")
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
