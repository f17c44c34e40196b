"""What a machine lacks leaves a test out at a developer's, and fails it in the gate, by its name."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.needs import needs_kernel, needs_package, needs_root, needs_tool


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (
            lambda: needs_tool("no_such_program", "its-package"),
            "program no_such_program: install its-package",
        ),
        (lambda: needs_package("no_such_package.part"), "package no_such_package: make setup"),
        (needs_root, "rights of root: run the tests as root"),
    ],
    ids=["tool", "package", "root"],
)
def test_what_is_missing_is_skipped_here_and_fails_in_the_gate(
    monkeypatch: pytest.MonkeyPatch, needs: Callable[[], object], said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=said):
        needs()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=said):
        needs()


def test_what_is_there_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("CI", "true")
    assert needs_tool("sh").endswith("/sh")
    assert needs_package("pytest") is pytest
    needs_root()
    needs_kernel("anything", is_there=True)


def test_what_no_gate_can_have_is_skipped_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="this kernel lacks a log"):
        needs_kernel("a log that may be written")
