"""Every planted bug is caught. The whole table is printed by `make planted`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.bugs import BUGS

ROOT = Path(__file__).parents[2]


def test_the_table_is_well_made() -> None:
    assert len(BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert [bug.name for bug in BUGS if bug.occurrences(ROOT / "recovery") != 1] == [], (
        "the code has moved on"
    )


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_every_planted_bug_is_caught() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted.run"],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
