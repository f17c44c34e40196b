"""Options of this room's tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: write down what the stories tell now; the difference is reviewed like code."""
    parser.addoption("--rewrite", action="store_true", help="renew the right sides of tests/core/stories")
