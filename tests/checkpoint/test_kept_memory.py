"""Memory that is kept: no page of it is fresh twice, and no more is asked for than there is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.checkpoint import free_memory, staging_buffer
from recovery.checkpoint.staging_buffer import KeptMemory
from tests.open_files import open_files
from tests.pace import HANG_S


def test_it_is_kept_while_it_is_large_enough_and_grows_with_some_to_spare() -> None:
    memory = KeptMemory()
    memory.take(1_000_000)[0] = 7
    first = os.fstat(memory.descriptor).st_ino

    assert memory.take(10)[0] == 7
    assert memory.take(1_050_000)[0] == 7, "a sixteenth more was taken at once"
    assert os.fstat(memory.descriptor).st_ino == first

    assert memory.take(2_000_000)[0] == 0
    assert os.fstat(memory.descriptor).st_ino != first
    memory.release()
    assert (memory.size, memory.descriptor) == (0, -1)


def test_more_than_the_machine_has_to_spare_is_refused_and_changes_nothing() -> None:
    memory = KeptMemory()
    memory.take(100)[0] = 7

    with pytest.raises(MemoryError, match="are free"):
        memory.take(free_memory.free_bytes())

    assert memory.take(100)[0] == 7
    memory.release()


def test_what_is_taken_is_there_at_once_for_the_next_rank_to_see() -> None:
    """Eight ranks that save for the first time at the same step would all find the same memory free."""
    memory = KeptMemory()
    memory.take(100_000_000)
    assert os.fstat(memory.descriptor).st_blocks * 512 >= 100_000_000
    memory.release()


_RANK = """
import os, sys, threading
from recovery.checkpoint import free_memory, staging_buffer
taken = sys.argv[1]
free_memory.free_bytes = lambda: 500 - os.path.getsize(taken)

def take(descriptor, size):
    threading.Event().wait(0.05)  # pages are not made in no time
    with open(taken, "ab") as file:
        file.write(bytes(size))

staging_buffer._make_pages = take
print("ready", flush=True)
sys.stdin.readline()
try:
    staging_buffer.KeptMemory().take(90)
    print("taken", flush=True)
except MemoryError:
    print("refused", flush=True)
"""
"""One of a host with 500 bytes: with 95 to spare, four times 95 can be taken."""


def test_ranks_that_ask_at_the_same_time_count_what_the_others_have_taken(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    command = [sys.executable, "-c", _RANK, str(taken)]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    answers = sorted(rank.communicate(timeout=HANG_S)[0].strip() for rank in ranks)
    assert answers == ["refused"] * 4 + ["taken"] * 4


def test_who_finds_the_lock_held_for_long_goes_on_without_it_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(staging_buffer, "_HOST", tmp_path)
    monkeypatch.setattr(staging_buffer, "WAIT_MS", 30)
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    memory = KeptMemory()
    memory.take(10)
    assert "event=memory_not_reserved" in caplog.text

    os.close(holder)
    caplog.clear()
    memory.take(10_000)
    monkeypatch.setattr(staging_buffer, "_HOST", tmp_path / "absent")
    memory.take(100_000)
    assert not caplog.text
    memory.release()


def _group(path: Path, limit: str, *, current: int, file: int, shmem: int) -> None:
    path.mkdir(exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{current}\n")
    (path / "memory.stat").write_text(f"anon 1\nfile {file}\nshmem {shmem}\n")


def test_the_page_cache_of_a_container_is_free_and_its_tmpfs_is_not(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n")
    root = tmp_path / "root"
    _group(root, "1000", current=900, file=700, shmem=200)
    assert free_memory.free_of_groups(root, own) == 600


def test_the_narrowest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "root"
    own.write_text("0::/job/step/task\n")
    root.mkdir()
    _group(root / "job", "1000", current=900, file=0, shmem=0)
    _group(root / "job" / "step", "500", current=100, file=0, shmem=0)
    _group(root / "job" / "step" / "task", "max", current=100, file=0, shmem=0)
    assert free_memory.free_of_groups(root, own) == 100

    (root / "job" / "memory.max").write_text("max")
    assert free_memory.free_of_groups(root, own) == 400
    (root / "job" / "step" / "memory.stat").write_text("no numbers")
    assert free_memory.free_of_groups(root, own) is None
    assert free_memory.free_of_groups(root, tmp_path / "absent") is None


def test_nothing_of_it_is_left_open() -> None:
    before = open_files()
    for size in (10, 10_000, 10_000_000):
        memory = KeptMemory()
        memory.take(size)
        memory.take(2 * size)
        memory.release()

    assert not open_files() - before
