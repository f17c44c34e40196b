"""What a test sets in the environment of the process that runs it ends with the test."""

from __future__ import annotations

import os

import pytest

LEFT = "LEFT_BY_A_TEST"


@pytest.mark.parametrize("number", range(12))
def test_no_later_test_finds_a_variable_that_a_test_has_set(number: int) -> None:
    """More of them than processes that run tests, so that two run in one."""
    assert LEFT not in os.environ
    os.environ[LEFT] = str(number)
