"""What a program that replaces another one is told, and what becomes of a process that cannot be replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.core.worker.stimuli import Hangs
from recovery.errors import ProcessNotReplacedError
from recovery.worker.exec_in_place import HANGS_VARIABLE, take_hangs
from tests.untraced import run_module


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        ("2:411", Hangs(2, 411)),
        ("", Hangs()),
        ("2", Hangs()),
        ("-1:x", Hangs()),
        ("1:\N{SUPERSCRIPT TWO}", Hangs()),
    ],
)
def test_what_was_counted_is_taken_out_of_the_environment(
    told: str, taken: Hangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANGS_VARIABLE, told)

    assert take_hangs() == taken
    assert HANGS_VARIABLE not in os.environ


def test_a_process_whose_interpreter_is_gone_ends_instead_of_hanging_on_with_its_rank(tmp_path: Path) -> None:
    done = run_module(f"tests.worker.replaced_child {tmp_path}")

    assert done.returncode == ProcessNotReplacedError.exit_code
    assert (
        f"PROCESS_NOT_REPLACED: {tmp_path}/python cannot take this process over" in done.stdout + done.stderr
    )
