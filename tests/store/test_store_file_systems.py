"""Disks that are full, read-only or of somebody else, for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.errors import (
    RecoveryPathError,
    StoreFullError,
)
from recovery.store.reader import read_events, read_scheduler
from recovery.store.repository import SchedulerStore
from tests.needs import needs_root
from tests.small_disk import small_disk
from tests.store.any_records import WALL_MS, checkpoint, event, filled, job

NOBODY = 65_534

# --- a file system that refuses -----------------------------------------------------------------------------------


@contextmanager
def another_user() -> Iterator[Path]:
    """A directory that user NOBODY owns, in a place that it may reach, and this process as that user."""
    needs_root()
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(place, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield place
    finally:
        os.seteuid(0)
        shutil.rmtree(place)


@pytest.mark.root
def test_a_directory_without_the_right_to_write_is_refused() -> None:
    with another_user() as place:
        place.chmod(0o500)

        with pytest.raises(RecoveryPathError, match="Permission denied"):
            SchedulerStore.open(place)
        with pytest.raises(RecoveryPathError, match="Permission denied"):
            SchedulerStore.open(place / "below" / "it")


@pytest.mark.root
def test_a_directory_of_another_user_is_refused_although_all_may_write_there() -> None:
    with another_user() as place:
        os.seteuid(0)
        os.chown(place, 0, 0)
        place.chmod(0o777)
        os.seteuid(NOBODY)

        with pytest.raises(
            RecoveryPathError, match=f"belongs to user 0 and this process runs as user {NOBODY}"
        ):
            SchedulerStore.open(place)
        assert list(place.iterdir()) == []


@pytest.mark.root
def test_another_user_uses_its_own_directory_and_nobody_else_may_read_it() -> None:
    with another_user() as place:
        store = SchedulerStore.open(place / "new")
        store.apply([job()], wall_ms=WALL_MS)

        assert (place / "new").stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in (place / "new").iterdir()} == {0o600}
        store.close()


@pytest.mark.root
def test_a_disk_that_is_really_full_refuses_whole_batches_and_resumes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=600k") as disk:
        store, written = SchedulerStore.open(disk / "recovery"), 0
        with pytest.raises(StoreFullError, match="Training goes on, answers wait"):  # noqa: PT012 - until it is full
            while True:
                store.apply([event(written), checkpoint(written)], wall_ms=WALL_MS)
                written += 1
        assert written > 10
        assert [line.event.step for line in read_events(disk / "recovery", limit=10**6)] == list(
            range(written)
        )

        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True, timeout=120)
        store.apply([event(written), checkpoint(written)], wall_ms=WALL_MS)
        store.close()

        assert len(read_scheduler(disk / "recovery").checkpoints) == written + 1


@pytest.mark.root
def test_a_disk_without_room_for_a_new_store_is_full_and_keeps_no_draft(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=40k") as disk:
        with pytest.raises((StoreFullError, RecoveryPathError), match=r"[Ff]ree space"):
            SchedulerStore.open(disk)

        assert [file.name for file in disk.iterdir() if "scheduler.db.lock" not in file.name] == []


@pytest.mark.root
def test_a_file_system_that_is_read_only_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        filled(disk / "recovery")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=120)

        with pytest.raises(RecoveryPathError, match="Read-only file system"):
            SchedulerStore.open(disk / "recovery")
        assert read_scheduler(disk / "recovery").job == job()


def test_a_parent_that_is_a_file_is_named_as_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RecoveryPathError, match="whose parents are directories"):
        SchedulerStore.open(tmp_path / "file" / "recovery")
