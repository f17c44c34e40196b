"""The loops over kill points, I/O errors, flips and power cuts, as large as every commit needs. Each runs in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.needs import lacks
from tests.untraced import run_module

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.slow]

SKIPPED = 77


LOOPS = {
    "kill": "tests.faults.kill_points --what kill --points 900",
    "errors": "tests.faults.kill_points --what errors --points 900",
    "flips": "tests.faults.flips --flips 1400",
    "cuts": "tests.faults.power_cuts --cuts 50",
}
Rows = list[dict[str, Any]]


def rows(name: str) -> Rows:
    """Run a loop to its end, which keeps one core busy."""
    done = run_module(f"{LOOPS[name]} --json")
    print(done.stdout)
    if done.returncode == SKIPPED:
        lacks("what power cuts need", done.stdout.strip())
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def total(found: Rows, name: str) -> int:
    """Sum of a column."""
    return sum(int(row[name]) for row in found)


def test_a_kill_at_any_of_seven_hundred_calls_loses_nothing_and_leaves_no_half() -> None:
    found = rows("kill")
    assert len(found) == 15
    assert total(found, "points") >= 700
    assert total(found, "killed") >= 0.95 * total(found, "points"), (
        "points that are not reached prove nothing"
    )


def test_an_error_at_any_of_seven_hundred_calls_is_named_or_survived() -> None:
    found = rows("errors")
    assert len(found) == 15
    assert total(found, "points") >= 700
    assert total(found, "refused") > 0.5 * total(found, "points"), "errors that hurt nobody prove nothing"


def test_every_effective_flip_of_fourteen_hundred_is_refused() -> None:
    found = rows("flips")
    assert total(found, "flips") >= 1_000
    assert total(found, "wrong") == 0
    assert all(row["detected"] for row in found)


def test_fifty_power_cuts_take_nothing_acknowledged_and_the_control_loses() -> None:
    found = rows("cuts")
    control = [row for row in found if "control" in row["rule"]]
    held = [row for row in found if row not in control]
    assert total(held, "cuts") >= 50
    assert total(held, "cuts_with_loss") == 0
    assert all(row["cuts_with_loss"] for row in control), (
        "a harness that sees no loss there sees none anywhere"
    )
