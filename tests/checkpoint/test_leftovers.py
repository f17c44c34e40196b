"""What a killed save has left goes when the next process saves there; what may still become a checkpoint, or is another's, stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import BinaryIO

import pytest

from recovery.checkpoint.durable_files import TemporaryFile, opened_directory
from recovery.checkpoint.leftovers import remove_leftovers


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def half(stream: BinaryIO) -> None:
    stream.write(b"half")


def cut_off(directory: Path, *files: str) -> list[str]:
    """Let a process begin to write files, and kill it there; the names that it leaves."""
    before = names_in(directory)
    child = os.fork()
    if child == 0:
        try:
            with opened_directory(directory) as opened:
                staged = [TemporaryFile(opened, name) for name in files]
                for one in staged:
                    one.write(half)
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return [name for name in names_in(directory) if name not in before]


def test_what_a_killed_save_has_left_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    left = cut_off(tmp_path, "train-1_5.ckpt", "train-1_5.side", "train-1_10.safetensors")
    assert len(left) == 3
    remove_leftovers(tmp_path, "train")
    assert names_in(tmp_path) == []
    assert "event=leftovers_removed files=3 bytes=12" in caplog.text
    caplog.clear()
    remove_leftovers(tmp_path, "train")
    remove_leftovers(tmp_path / "absent", "train")
    assert caplog.text == ""


@pytest.mark.parametrize(
    "name",
    ["train-1_5.json", "other-1_5.ckpt", "train.rank1-1_5.ckpt", "notes.txt"],
    ids=["a manifest", "another prefix", "another rank", "no checkpoint"],
)
def test_what_is_not_of_these_saves_stays(tmp_path: Path, name: str) -> None:
    left = cut_off(tmp_path, name)
    remove_leftovers(tmp_path, "train")
    assert names_in(tmp_path) == left


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as opened, TemporaryFile(opened, "train-1_5.ckpt") as staged:
        staged.write(half)
        (tmp_path / f".train-1_6.ckpt.{os.getppid()}-0123456789abcdef.tmp").write_bytes(b"half")
        remove_leftovers(tmp_path, "train")
        assert len(names_in(tmp_path)) == 2
    assert len(names_in(tmp_path)) == 1, "its own goes with it"


def test_what_an_earlier_process_of_the_same_pid_has_left_goes(tmp_path: Path) -> None:
    """In a container each start has the same pid, and a program that replaces itself keeps it."""
    (tmp_path / f".train-1_5.ckpt.{os.getpid()}-0123456789abcdef.tmp").write_bytes(b"half")
    with opened_directory(tmp_path) as opened, TemporaryFile(opened, "train-1_6.ckpt") as staged:
        staged.write(half)
        remove_leftovers(tmp_path, "train")
        [own] = names_in(tmp_path)
        assert own.startswith(".train-1_6.ckpt.")


def test_what_a_person_has_named_so_stays(tmp_path: Path) -> None:
    for name in (
        ".train-1_5.ckpt.tmp",
        ".train-1_5.ckpt.x-0123456789abcdef.tmp",
        "train-1_5.ckpt.1-0123456789abcdef.tmp",
    ):
        (tmp_path / name).write_bytes(b"")
    remove_leftovers(tmp_path, "train")
    assert len(names_in(tmp_path)) == 3


def test_what_cannot_be_removed_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A directory of such a name is nobody's save.
    (tmp_path / ".train-1_5.ckpt.4194305-0123456789abcdef.tmp").mkdir()
    remove_leftovers(tmp_path, "train")
    assert "event=leftovers_not_removed" in caplog.text
