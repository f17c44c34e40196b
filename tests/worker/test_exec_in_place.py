"""What goes over an exec and what does not, and what becomes of a process that cannot be replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.core.worker.stimuli import Hangs
from recovery.errors import ProcessNotReplacedError
from recovery.worker.exec_in_place import (
    HANGS_VARIABLE,
    TOKEN_VARIABLE,
    close_all_at_exec,
    take_hangs,
    take_token,
)
from tests.untraced import run_module


@pytest.mark.parametrize(
    ("handed_on", "taken"),
    [
        ("2:411", Hangs(2, 411)),
        ("", Hangs()),
        ("2", Hangs()),
        ("-1:x", Hangs()),
        ("1:\N{SUPERSCRIPT TWO}", Hangs()),
    ],
)
def test_what_was_counted_is_taken_out_of_the_environment(
    handed_on: str, taken: Hangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANGS_VARIABLE, handed_on)

    assert take_hangs() == taken
    assert HANGS_VARIABLE not in os.environ


def test_a_process_whose_interpreter_is_gone_ends_instead_of_hanging_on_with_its_rank(tmp_path: Path) -> None:
    done = run_module(f"tests.worker.replaced_child {tmp_path}")

    assert done.returncode == ProcessNotReplacedError.exit_code
    assert (
        f"PROCESS_NOT_REPLACED: {tmp_path}/python cannot take this process over" in done.stdout + done.stderr
    )


def test_the_token_is_taken_out_of_the_environment_so_that_no_child_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "5ec2e7")

    assert take_token() == "5ec2e7"
    assert TOKEN_VARIABLE not in os.environ
    assert take_token() is None


def test_descriptors_are_marked_for_exec_and_stay_open_until_then() -> None:
    reading, writing = os.pipe()
    try:
        os.set_inheritable(reading, True)
        close_all_at_exec()
        os.write(writing, b"x")
        assert os.read(reading, 1) == b"x"
        assert not os.get_inheritable(reading)
        assert os.get_inheritable(2), "the standard ones are the next program's too"
    finally:
        os.close(reading)
        os.close(writing)
