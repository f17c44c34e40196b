"""What several tests look at and none changes, made by the first process of the test run that needs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.warm import process


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A directory of this test run, the same in all its processes.

    Args:
        factory: of this process.
        name: of the directory.
        make: fills it; the others wait meanwhile. Its processes start warm: it is no test's subject.
    """
    place = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Every process has a directory of its own in that of the run.
        place = place.parent
    directory, is_made = place / name, place / f"{name}.made"
    with FileLock(place / f"{name}.lock"):
        if not is_made.exists():
            # Somebody may have failed to make it.
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            with process.cold(really=False):
                make(directory)
            is_made.touch()
    return directory
