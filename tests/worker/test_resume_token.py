"""The resume token travels over an exec in the environment, and no further."""

from __future__ import annotations

import os

import pytest

from recovery.worker.exec_in_place import TOKEN_VARIABLE, take_token


def test_the_token_is_taken_out_of_the_environment_so_that_no_child_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "5ec2e7")

    assert take_token() == "5ec2e7"
    assert TOKEN_VARIABLE not in os.environ
    assert take_token() is None
