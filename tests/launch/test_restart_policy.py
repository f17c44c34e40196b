"""When a process that ended is started again: every row of the table."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.errors import ROWS, Cause, Row, cause_of
from recovery.launch.restart_policy import WINDOW_MS, Ended, Next, decide, describe, exit_code_of


def ended(**fields: Any) -> Ended:
    facts: dict[str, Any] = {
        "status": -9,
        "was_member": False,
        "handed_over": False,
        "asked_to_end": False,
        "idle_ends": 0,
        "training_done": False,
        "needed": True,
        "first": False,
        "recovery_enabled": True,
        "has_stepped": True,
        "repeats": False,
        "short_attempts": 0,
        "relaunched_ms": (),
        "max_restarts": 3,
        "unbegun_ms": None,
        "patience_ms": 600_000,
        "now_ms": 10_000_000,
    }
    facts = {**facts, **fields}
    of_status = {"cause": cause_of(facts["status"]), "world_full": facts["status"] == 78}
    return Ended(**{**of_status, **facts})


_UNBEGUN = {"status": 71, "cause": Cause.TEMPORARY, "unbegun_ms": 599_999}


@pytest.mark.parametrize(
    ("fields", "follows", "reason"),
    [
        ({"status": 0}, Next.DONE, "it is done"),
        ({"status": 0, "recovery_enabled": False}, Next.DONE, "it is done"),
        (
            {"status": 143, "handed_over": True, "relaunched_ms": (9_999_000,) * 3, "has_stepped": False},
            Next.RELAUNCH,
            "as planned",
        ),
        (
            {"status": 143, "asked_to_end": True, "relaunched_ms": (9_999_000,) * 3, "has_stepped": False},
            Next.RELAUNCH,
            "uses up no restart",
        ),
        ({"status": 143, "asked_to_end": True, "idle_ends": 3}, Next.RELAUNCH, "uses up no restart"),
        ({"status": 143, "asked_to_end": True, "idle_ends": 4}, Next.FAIL, "SIGTERM has ended it 4 times"),
        (
            {"status": 143, "asked_to_end": True, "idle_ends": 4, "needed": False},
            Next.SURPLUS,
            "end the next start, too; it holds no rank",
        ),
        (
            {"status": 143, "handed_over": True, "asked_to_end": True, "idle_ends": 4},
            Next.RELAUNCH,
            "as planned",
        ),
        ({"status": 143, "has_stepped": False}, Next.FAIL, "before the job's first step"),
        ({"status": 143, "asked_to_end": True, "recovery_enabled": False}, Next.FAIL, "the first failure"),
        ({"training_done": True, "status": 0}, Next.DONE, "it is done"),
        ({"training_done": True, "status": 1, "has_stepped": False}, Next.FAIL_LATE, "its training was done"),
        ({"training_done": True, "recovery_enabled": False}, Next.FAIL_LATE, "nothing is started again"),
        ({"training_done": True, "status": 22, "needed": False}, Next.FAIL_LATE, "its exit code"),
        ({"recovery_enabled": False}, Next.FAIL, "first failure ends the job"),
        ({"status": 22}, Next.FAIL, "by its exit code"),
        ({"status": 60}, Next.FAIL, "by its exit code"),
        ({"status": 75}, Next.RELAUNCH, "started again"),
        ({"status": 76}, Next.RELAUNCH, "started again"),
        ({"status": 36, "repeats": True, "has_stepped": False}, Next.RELAUNCH, "started again"),
        ({"status": 36, "relaunched_ms": (9_999_000,) * 3}, Next.FAIL, "--max_restarts"),
        ({"status": 36, "recovery_enabled": False}, Next.FAIL, "first failure ends the job"),
        ({"status": 51, "first": True}, Next.FAIL, "its first start"),
        ({"status": 51, "repeats": True}, Next.RELAUNCH, "started again"),
        ({"status": 71, "first": True, "cause": Cause.TEMPORARY}, Next.RELAUNCH, "started again"),
        (
            {**_UNBEGUN, "relaunched_ms": (9_999_000,) * 3, "has_stepped": False},
            Next.RELAUNCH,
            "uses up no restart",
        ),
        ({**_UNBEGUN, "unbegun_ms": 600_000}, Next.FAIL, "within --cluster_time_out"),
        ({**_UNBEGUN, "unbegun_ms": 10**9, "patience_ms": None}, Next.RELAUNCH, "uses up no restart"),
        ({**_UNBEGUN, "recovery_enabled": False}, Next.FAIL, "first failure ends the job"),
        ({**_UNBEGUN, "cause": Cause.PERMANENT}, Next.FAIL, "by its exit code"),
        ({**_UNBEGUN, "cause": Cause.UNKNOWN, "first": True}, Next.FAIL, "its first start"),
        ({**_UNBEGUN, "cause": Cause.UNKNOWN}, Next.RELAUNCH, "uses up no restart"),
        ({"status": 78}, Next.SURPLUS, "the job goes on"),
        ({"status": 78, "recovery_enabled": False}, Next.SURPLUS, "the job goes on"),
        ({"status": 78, "was_member": True}, Next.FAIL, "by its exit code"),
        ({"status": 1, "has_stepped": False}, Next.FAIL, "before the job's first step"),
        ({"status": 63, "has_stepped": False}, Next.FAIL, "before the job's first step"),
        ({"status": 63, "repeats": True}, Next.FAIL, "in the same way"),
        ({"status": -9, "has_stepped": False}, Next.RELAUNCH, "started again"),
        ({"status": 1}, Next.RELAUNCH, "started again"),
        ({"status": 1, "repeats": True}, Next.FAIL, "in the same way"),
        ({"status": -9, "repeats": True}, Next.RELAUNCH, "started again"),
        ({"status": 139}, Next.RELAUNCH, "started again"),
        ({"status": 22, "cause": None}, Next.RELAUNCH, "started again"),
        ({"status": 78, "cause": None, "world_full": False}, Next.RELAUNCH, "started again"),
        ({"max_restarts": 0}, Next.FAIL, "--max_restarts"),
        (
            {"max_restarts": 0, "needed": False},
            Next.SURPLUS,
            "--max_restarts times within an hour; it holds no rank",
        ),
        (
            {"status": 22, "needed": False},
            Next.SURPLUS,
            "by its exit code; the same command would end the same way; it",
        ),
        ({"status": 1, "needed": False, "recovery_enabled": False}, Next.FAIL, "first failure ends the job"),
        ({"needed": False}, Next.RELAUNCH, "started again"),
        ({"relaunched_ms": (9_999_000,) * 3}, Next.FAIL, "--max_restarts"),
        ({"relaunched_ms": (10_000_000 - WINDOW_MS,) * 3}, Next.RELAUNCH, "started again"),
    ],
)
def test_the_table(fields: dict[str, Any], follows: Next, reason: str) -> None:
    decision = decide(ended(**fields))
    assert decision.next is follows
    assert reason in decision.reason


NAMED = [row for row in ROWS.values() if row.exit_code != 1 and row.code != "WORLD_FULL"]
"""Errors that a process of ours ends with by an exit code of their own. WORLD_FULL has a row of its own."""


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.code)
@pytest.mark.parametrize("first", [True, False])
def test_every_error_decides_by_its_cause_alone(row: Row, first: bool) -> None:
    follows = {
        Cause.TEMPORARY: Next.RELAUNCH,
        Cause.PERMANENT: Next.FAIL,
        Cause.UNKNOWN: Next.FAIL if first else Next.RELAUNCH,
        Cause.SCRIPT: Next.RELAUNCH,
    }
    assert row.temporary == (row.cause is Cause.TEMPORARY)
    assert decide(ended(status=row.exit_code, first=first)).next is follows[row.cause]


def test_what_has_to_pass_first_waits_from_its_second_short_attempt_on() -> None:
    waits = [decide(ended(status=36, short_attempts=count, max_restarts=99)).after_ms for count in range(4)]
    assert waits == [0, 1_000, 2_000, 4_000]


def test_each_short_attempt_in_a_row_makes_the_next_wait_longer() -> None:
    waits = [decide(ended(short_attempts=count, max_restarts=99)).after_ms for count in range(9)]
    assert waits == [0, 0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


def test_a_status_is_described_as_people_know_it() -> None:
    assert [describe(1), describe(-9), describe(-15), describe(-99)] == [
        "exit code 1",
        "killed by SIGKILL",
        "killed by SIGTERM",
        "killed by signal 99",
    ]
    assert describe(-9, kernel_message="Killed process 7") == "killed by SIGKILL (Killed process 7)"
    assert describe(-15, kernel_message="x") == "killed by SIGTERM"
    assert [exit_code_of(status) for status in (0, 3, -9, -15)] == [0, 3, 137, 143]
