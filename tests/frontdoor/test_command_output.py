"""What a command says of its own words and of its standard output: never nothing. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMMAND = (sys.executable, "-m", "recovery")


@pytest.mark.parametrize(
    ("words", "missing"),
    [(("export", "somewhere"), "file"), (("stop",), "path"), (("drain",), "PATH"), (("certs",), "action")],
)
def test_a_word_that_is_missing_is_named(words: tuple[str, ...], missing: str) -> None:
    """The command ended with 2 and had said nothing."""
    done = subprocess.run([*_COMMAND, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Missing argument '{missing}'.")
    assert done.stderr.endswith(f"recovery {words[0]} --help` lists what there is.\n")


@pytest.mark.parametrize("words", [("--help",), ("doctor", "--help"), ("--version",)], ids=" ".join)
def test_an_output_that_is_full_is_named_and_no_success(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*_COMMAND, *words], check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (65, "standard output: No space left on device\n")


def test_who_has_read_enough_of_an_output_is_told_nothing() -> None:
    hears, says = os.pipe()
    os.close(hears)
    with os.fdopen(says, "wb") as pipe:
        done = subprocess.run(
            [*_COMMAND, "--version"], check=False, stdout=pipe, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (141, ""), "as of any program that a pipe has ended"
