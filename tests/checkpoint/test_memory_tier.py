"""A job's directory in memory is held by its processes, and removed when nobody holds it and nobody will: never a living job's."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from recovery import clock
from recovery.checkpoint.memory_tier import GRACE_MS, OWNER_FILE, MemoryHome, clear_up, free_bytes

HOLDER = """
import sys
from pathlib import Path
from recovery.checkpoint.memory_tier import MemoryHome
home = MemoryHome(Path(sys.argv[1]), "job", Path("/job"))
(home.directory(1, 0) / "state").write_bytes(b"x")
print("holds", flush=True)
sys.stdin.read()
"""


def left_behind(base: Path, **changes: object) -> Path:
    """The directory of a job that no process holds, with other words in its owner's file."""
    home = MemoryHome(base, "job", Path("/job"))
    (home.directory(1, 0) / "state").write_bytes(b"x")
    home.leave(job_is_over=False)
    owner = home.root / OWNER_FILE
    if changes:
        said = {**msgspec.json.decode(owner.read_bytes()), **changes}
        owner.write_bytes(msgspec.json.encode(said))
    return home.root


def long_ago() -> int:
    return clock.boot_ms() - GRACE_MS - 60_000


def test_a_directory_is_its_users_alone_and_has_a_place_for_each_rank(tmp_path: Path) -> None:
    home = MemoryHome(tmp_path, "job", Path("/job"))
    assert home.root == tmp_path / f"recovery-memory-{os.geteuid()}-job"
    assert home.root.stat().st_mode & 0o777 == 0o700
    assert {home.directory(1, 0), home.directory(1, 1), home.directory(2, 0)} == {
        home.root / name for name in ("run-1-rank-0", "run-1-rank-1", "run-2-rank-0")
    }
    home.leave(job_is_over=True)
    assert not home.root.exists()


def test_the_last_process_of_a_finished_job_removes_it(tmp_path: Path) -> None:
    first, second = MemoryHome(tmp_path, "job", Path("/job")), MemoryHome(tmp_path, "job", Path("/job"))
    first.leave(job_is_over=True)
    assert second.root.is_dir(), "the other one has not ended yet"
    second.leave(job_is_over=True)
    assert not second.root.exists()
    second.leave(job_is_over=True)


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({}, True),
        ({"used_ms": long_ago()}, False),
        ({"boot": "another"}, False),
        ({"boot": ""}, False),
        ({"used_ms": "no number"}, False),
    ],
    ids=["just used", "long unused", "another boot", "no boot", "unreadable"],
)
def test_what_nobody_holds_goes_when_its_job_is_over(
    tmp_path: Path, changes: dict[str, object], stays: bool
) -> None:
    root = left_behind(tmp_path, **changes)
    clear_up(tmp_path)
    assert root.exists() is stays


def test_a_launcher_removes_what_its_own_job_has_left_and_no_others(tmp_path: Path) -> None:
    root = left_behind(tmp_path)
    clear_up(tmp_path, ended=Path("/another"))
    assert root.is_dir()
    clear_up(tmp_path, ended=Path("/job"))
    assert not root.exists()


def test_a_living_jobs_directory_is_left_alone_until_its_process_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None, "it was asked for"
        assert process.stdout.readline() == b"holds\n"
        [root] = tmp_path.iterdir()
        owner = root / OWNER_FILE
        said = {**msgspec.json.decode(owner.read_bytes()), "used_ms": long_ago(), "boot": "another"}
        owner.write_bytes(msgspec.json.encode(said))
        clear_up(tmp_path, ended=Path("/job"))
        assert (root / "run-1-rank-0/state").read_bytes() == b"x"
        process.kill()
        process.wait(60)
        clear_up(tmp_path)
        assert not root.exists()


@pytest.mark.parametrize("kind", ["link", "open to others", "file"])
def test_what_another_user_could_have_put_there_is_not_used_and_not_removed(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / f"recovery-memory-{os.geteuid()}-job"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "elsewhere/precious").touch()
        root.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        root.touch()
    else:
        root.mkdir()
        root.chmod(0o777)
    with pytest.raises(PermissionError, match="not a directory of this user alone"):
        MemoryHome(tmp_path, "job", Path("/job"))
    clear_up(tmp_path, ended=Path("/job"))
    assert os.path.lexists(root)
    assert kind != "link" or (tmp_path / "elsewhere/precious").exists()
    assert "event=memory_not_cleared" in caplog.text


def test_other_names_and_other_users_are_not_touched(tmp_path: Path) -> None:
    others = [
        tmp_path / name
        for name in (f"recovery-memory-{os.geteuid() + 1}-job", "torch_shm", "recovery-memory-")
    ]
    for other in others:
        other.mkdir(mode=0o700)
    clear_up(tmp_path)
    assert all(other.is_dir() for other in others)


def test_who_makes_the_directory_while_it_is_cleared_up_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_behind(tmp_path, boot="another")
    flock, cleared = fcntl.flock, list[bool]()

    def cleared_in_between(descriptor: int, how: int) -> None:
        if not cleared:
            cleared.append(True)
            clear_up(tmp_path)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", cleared_in_between)
    home = MemoryHome(tmp_path, "job", Path("/job"))
    assert cleared
    assert not (left / "run-1-rank-0").exists(), "it was removed"
    assert home.directory(1, 0).is_dir()
    clear_up(tmp_path)
    assert home.directory(1, 0).is_dir(), "it is held"
    home.leave(job_is_over=True)


def test_a_directory_that_is_not_there_has_nothing_to_clear_up_and_no_room(tmp_path: Path) -> None:
    clear_up(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_what_is_free_is_what_the_file_system_and_the_memory_can_take(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 < free_bytes(tmp_path) <= found.f_bfree * found.f_frsize
