"""A file system that makes no names durable is said once, and ends no save; another error of it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery import directory_sync
from recovery.checkpoint import durable_files
from recovery.store import paths

NONE = Path("/proc")
"""The kernel's own answers EINVAL, as 9p and vboxsf do."""


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_sync, "_said", set())


@pytest.mark.parametrize("sync", [durable_files.sync_directory, paths.fsync_directory])
def test_a_file_system_without_an_fsync_of_directories_is_said_once(
    sync: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    descriptor = os.open(NONE, os.O_RDONLY)
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(descriptor)
    os.close(descriptor)
    for place in (NONE, NONE / "self", NONE):
        sync(place)
    [said] = caplog.messages
    assert said.startswith("event=directory_not_synced path='/proc' reason='Invalid argument'")


def test_every_other_error_is_one() -> None:
    descriptor = os.open(NONE, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        directory_sync.sync_names(descriptor)
