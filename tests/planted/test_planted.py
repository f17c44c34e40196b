"""Every planted bug is caught. The whole table is printed by `make planted`."""

from __future__ import annotations

import pytest

from tests.planted.bugs import BUGS
from tests.untraced import ROOT, run_module


def test_the_table_is_well_made() -> None:
    assert len(BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert [bug.name for bug in BUGS if bug.occurrences(ROOT / "recovery") != 1] == [], (
        "the code has moved on"
    )


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.alone
def test_every_planted_bug_is_caught() -> None:
    done = run_module("tests.planted.run")
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
