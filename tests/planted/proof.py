"""A plugin of pytest for the private copies: says at the end which package the tests have really imported."""

from __future__ import annotations

import pytest

import recovery

SAYS = "planted: recovery is "


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the imported package's file."""
    terminalreporter.write_line(f"{SAYS}{recovery.__file__}")
