"""What a test needs of its machine. Where it is missing, a developer's run leaves the test out, and the gate's fails by its name."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any, NoReturn

import pytest


def lacks(what: str, remedy: str) -> NoReturn:
    """Leave this test out; where the variable CI is set, fail it.

    Args:
        what: is missing.
        remedy: what to do about it.
    """
    reason = f"this machine lacks {what}: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def needs_tool(name: str, package: str = "") -> str:
    """Where a program lies; `package` is what brings it, if it has another name."""
    return shutil.which(name) or lacks(f"the program {name}", f"install {package or name}")


def needs_package(name: str) -> Any:
    """A module of a package that not every user installs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        lacks(f"the Python package {name.partition('.')[0]}", "make setup")


def needs_root() -> None:
    """The rights of root."""
    if os.geteuid() != 0:
        lacks("the rights of root", "run the tests as root")


def needs_kernel(what: str, *, is_there: bool = False) -> None:
    """What no installation brings. Without it the test is left out, in the gate as well: only for what a gate cannot have."""
    if not is_there:
        pytest.skip(f"this kernel lacks {what}")
