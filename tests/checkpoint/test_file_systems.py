"""What a file system lacks or has run out of is said in words of its own; one that makes no names durable is said once, and ends no save."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery import file_systems
from recovery.checkpoint import durable_files
from recovery.store import paths
from tests.small_disk import small_disk

NONE = Path("/proc")
"""The kernel's own answers EINVAL, as 9p and vboxsf do."""


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "_said", set())


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
        file_systems.sync_names(descriptor)


# --- what is lacking --------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is made has it, as on exFAT."""
    opened = os.open
    monkeypatch.setattr(os, "open", lambda name, flags, mode=0, **how: opened(name, flags, 0o755, **how))


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "link", refuse)


def test_nothing_is_lacking_here_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert list(file_systems.lacking(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("one_mode", "no_links")
def test_each_that_is_lacking_is_said_by_itself(tmp_path: Path) -> None:
    assert list(file_systems.lacking(tmp_path)) == [
        "its file system keeps no modes: a file made for its owner alone has 0755",
        "its file system has no hard links",
    ]
    assert list(tmp_path.iterdir()) == []


def test_another_failure_of_a_link_is_not_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        list(file_systems.lacking(tmp_path))


# --- inodes -----------------------------------------------------------------------------------------------------------------


def test_no_space_is_no_more_than_that_where_inodes_are_left(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert file_systems.words_of(full, tmp_path / "none" / "file") == "No space left on device"
    assert file_systems.words_of(OSError("torn"), tmp_path) == "torn"
    assert file_systems.inodes(Path("/proc")) is None


@pytest.mark.root
def test_no_space_for_a_name_is_said_to_be_that(tmp_path: Path) -> None:
    with small_disk(tmp_path, "nr_inodes=8"):
        with pytest.raises(OSError, match="No space left") as caught:  # noqa: PT012 - until it is full
            for number in range(8):
                (tmp_path / str(number)).touch()
        said = "No space left on device: all of its 8 inodes are in use, remove files"
        assert file_systems.words_of(caught.value, tmp_path / "8") == said
        refused_for = paths.refusal(tmp_path / "scheduler.db")
        assert refused_for is not None
        assert file_systems.words_of(refused_for, tmp_path) == said
        assert f"({said})" in str(paths.refused(tmp_path, caught.value))
