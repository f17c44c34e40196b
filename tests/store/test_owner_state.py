"""Whether the owner of a store runs: only this host's locks are seen, so an owner elsewhere is unknown, never dead."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from recovery.store.lock import (
    Owner,
    OwnerState,
    _device_of_mount,
    found_locked,
    held_locks,
    owner_of,
    owner_state,
)
from recovery.store.paths import scheduler_path, worker_path
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.needs import needs_kernel, needs_root
from tests.small_disk import btrfs_disk


def test_a_store_shows_whether_its_owner_runs_here(tmp_path: Path) -> None:
    file = worker_path(tmp_path, "w")
    assert owner_state(file, held_locks()) is OwnerState.UNKNOWN, "nobody has opened it yet"
    store = WorkerStore.open(tmp_path, "w")
    held = held_locks()
    assert owner_state(file, held) is OwnerState.RUNNING
    owner = owner_of(file)
    assert owner is not None
    assert (owner.pid, owner.pid in (held or {}).values()) == (os.getpid(), True)
    assert f"is in use by pid {os.getpid()} on " in str(found_locked(file))
    store.close()
    assert found_locked(file) is None
    assert owner_state(file, held_locks()) is OwnerState.NOT_RUNNING
    assert owner_state(file, None) is OwnerState.UNKNOWN, "who may not look at the locks cannot know"

    note = tmp_path / "workers" / "w.db.lock.holder"
    note.write_text(json.dumps({"pid": 1, "host": "another"}))
    assert owner_state(file, held_locks()) is OwnerState.UNKNOWN, (
        "it ran on another host that shares the directory"
    )
    note.write_text("half a no")
    assert owner_state(file, held_locks()) is OwnerState.UNKNOWN


def test_a_lock_is_named_by_the_device_of_its_mount_which_stat_may_not_know(tmp_path: Path) -> None:
    (tmp_path / "fdinfo").mkdir()
    (tmp_path / "fdinfo" / "7").write_text("pos:\t0\nmnt_id:\t35\nino:\t258\n")
    (tmp_path / "fdinfo" / "8").write_text("pos:\t0\n")
    (tmp_path / "mountinfo").write_bytes(
        b"27 1 254:0 / / rw - ext4 /dev/vda rw\n35 27 0:39 /@ /home\xff rw - btrfs /dev/vdb rw\n"
    )

    assert _device_of_mount(7, tmp_path) == (0, 39)
    for unknown in (8, 9):
        assert _device_of_mount(unknown, tmp_path) is None
    (tmp_path / "mountinfo").write_text("27 1 254:0 / / rw - ext4 /dev/vda rw\n")
    assert _device_of_mount(7, tmp_path) is None, "it is mounted where this process cannot look"


@pytest.mark.root
def test_a_running_owner_on_btrfs_is_seen(tmp_path: Path) -> None:
    with btrfs_disk(tmp_path / "place") as place:
        store = SchedulerStore.open(place / "job")
        database = scheduler_path(place / "job")
        assert owner_of(database) == Owner(pid=os.getpid())
        assert owner_state(database, held_locks()) is OwnerState.RUNNING
        store.close()
        assert owner_of(database) is None


@pytest.mark.root
def test_a_running_owner_on_a_file_system_above_two_others_is_seen(tmp_path: Path) -> None:
    """As in a container: stat names another device than the mount's, as on btrfs, and every kernel has one."""
    needs_root()
    needs_kernel("overlay", is_there="overlay" in Path("/proc/filesystems").read_text())
    for name in ("lower", "other", "place"):
        (tmp_path / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "other"], check=True, timeout=120)
    try:
        for name in ("upper", "work"):
            (tmp_path / "other" / name).mkdir()
        layers = f"xino=off,lowerdir={tmp_path}/lower,upperdir={tmp_path}/other/upper,workdir={tmp_path}/other/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", layers, str(tmp_path / "place")]
        subprocess.run(mount, check=True, timeout=120)
        store = SchedulerStore.open(tmp_path / "place" / "job")
        database = scheduler_path(tmp_path / "place" / "job")
        assert owner_of(database) == Owner(pid=os.getpid())
        assert owner_state(database, held_locks()) is OwnerState.RUNNING
        store.close()
        assert owner_state(database, held_locks()) is OwnerState.NOT_RUNNING
    finally:
        for name in ("place", "other"):
            subprocess.run(["umount", "-l", tmp_path / name], check=False, timeout=120)


def test_locks_that_cannot_be_read_are_no_answer(tmp_path: Path) -> None:
    assert owner_of(tmp_path / "absent.db") is None
    assert held_locks(tmp_path / "absent") is None
    assert held_locks(tmp_path) is None
