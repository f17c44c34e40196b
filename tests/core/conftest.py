"""Options of the core's tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: write down how the stories go now; the difference is reviewed like code."""
    parser.addoption("--rewrite", action="store_true", help="renew the right sides of tests/core/stories")
