"""Environments that load, and how each row of the table is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import config
from recovery.config.setting import Setting, SettingKind
from recovery.errors import SettingError

WORKER = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "4",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
    "MS_NODE_ID": "worker_0",
    "MS_ENABLE_RECOVERY": "1",
    "MS_RECOVERY_PATH": "/job/recovery",
}
SCHEDULER = {**WORKER, "MS_ROLE": "MS_SCHED"}

NUMBERS = (SettingKind.INTEGER, SettingKind.SECONDS, SettingKind.DECIMAL_SECONDS)

NOT_NUMBERS = (
    "abc",
    "1e9",
    "0x10",
    "\u0663",
    "\uff19",
    " 5",
    "5 ",
    "5\n",
    "\t5",
    "+5",
    "1_000",
    "nan",
    "inf",
    "-inf",
    "--5",
    "5s",
    "1,5",
    "5.",
    ".5",
    "1.2.3",
)


def refusal(environ: dict[str, str]) -> SettingError:
    """The error that an environment gets."""
    with pytest.raises(SettingError) as caught:
        config.load(environ)
    return caught.value


def with_value(row: Setting, value: str) -> dict[str, str]:
    """A worker's environment in which one variable has this value."""
    return {**WORKER, row.name: value}


def out_of_range(row: Setting) -> tuple[str, ...]:
    """Values of the right kind that a row must refuse. Empty: its kind knows no range."""
    if row.kind is SettingKind.CHOICE:
        return ("2", "yes", "TRUE", row.choices[0].lower() + "x", f" {row.choices[0]}", "1e9", "\uff11")
    if row.kind not in NUMBERS:
        return ()
    assert row.low is not None
    assert row.high is not None
    beyond = [str(row.high + 1), "9" * 5_000]
    if row.negative_is_for_ever:
        return (*beyond, "0", "-0")
    return (*beyond, str(row.low - 1), "-1", "-" + "9" * 5_000)


def resolved(path: str) -> Path:
    """What a relative path becomes."""
    return Path.cwd() / path
