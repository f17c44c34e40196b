"""The loops over kill points, I/O errors, flips and power cuts, as large as every commit needs. Each runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
SKIPPED = 77


def rows(*command: str) -> list[dict[str, Any]]:
    """Run one loop; its rows. Skips, with the printed reason, where it cannot run."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
    done = subprocess.run(
        [sys.executable, "-m", *command, "--json"],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )
    print(done.stdout)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def total(found: list[dict[str, Any]], name: str) -> int:
    """Sum of a column."""
    return sum(int(row[name]) for row in found)


def test_a_kill_at_any_of_five_hundred_calls_loses_nothing_and_leaves_no_half() -> None:
    found = rows("tests.faults.kill_points", "--what", "kill", "--points", "600")
    assert len(found) == 6
    assert total(found, "points") >= 500
    assert total(found, "killed") >= 0.95 * total(found, "points"), (
        "points that are not reached prove nothing"
    )


def test_an_error_at_any_of_five_hundred_calls_is_named_or_survived() -> None:
    found = rows("tests.faults.kill_points", "--what", "errors", "--points", "540")
    assert len(found) == 6
    assert total(found, "points") >= 500
    assert total(found, "refused") > 0.5 * total(found, "points"), "errors that hurt nobody prove nothing"


def test_every_effective_flip_of_twelve_hundred_is_refused() -> None:
    found = rows("tests.faults.flips", "--flips", "1200")
    assert total(found, "flips") >= 1_000
    assert total(found, "wrong") == 0
    assert all(row["detected"] for row in found)


def test_fifty_power_cuts_take_nothing_acknowledged_and_the_control_loses() -> None:
    found = rows("tests.faults.power_cuts", "--cuts", "50")
    control = [row for row in found if "control" in row["rule"]]
    held = [row for row in found if row not in control]
    assert total(held, "cuts") >= 50
    assert total(held, "cuts_with_loss") == 0
    assert all(row["cuts_with_loss"] for row in control), (
        "a harness that sees no loss there sees none anywhere"
    )
