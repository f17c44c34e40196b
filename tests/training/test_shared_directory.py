"""Ranks that do not see one directory are found out before anything is saved."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from recovery.errors import CheckpointError, GenerationInterrupted
from recovery.training.shared_directory_probe import Note, SharedDirectory

NOTE = Note(job="j", run=1, generation=3, world_size=2, rank=0)


def of(directory: Path, rank: int = 0, generation: int = 3) -> SharedDirectory:
    note = msgspec.structs.replace(NOTE, rank=rank, generation=generation)
    return SharedDirectory(directory, "train", note)


def goes_on() -> None:
    """The generation is not interrupted."""


def test_ranks_that_see_one_directory_see_each_other(tmp_path: Path) -> None:
    first, second = of(tmp_path), of(tmp_path, 1)
    first.leave_note()
    waiter = threading.Thread(target=lambda: first.await_others(goes_on))
    waiter.start()
    second.leave_note()
    waiter.join(60)
    assert not waiter.is_alive()
    second.await_others(goes_on, 0)
    first.remove_note()
    second.remove_note()
    assert not list(tmp_path.iterdir())


def test_a_note_is_written_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "of_somebody").write_text("kept")
    directory = tmp_path / "shared"
    directory.mkdir()
    (directory / ".train.rank0.here.part").symlink_to(tmp_path / "of_somebody")
    of(directory).leave_note()
    of(directory, 1).leave_note()

    assert (tmp_path / "of_somebody").read_text() == "kept"
    of(directory).await_others(goes_on, 0)
    assert {path.lstat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


@pytest.mark.parametrize("other", ["elsewhere", "earlier", "damaged", "none"])
def test_a_note_that_is_not_the_other_ranks_own_of_now_does_not_count(tmp_path: Path, other: str) -> None:
    first = of(tmp_path)
    first.leave_note()
    if other == "elsewhere":
        (tmp_path / "2").mkdir()
        of(tmp_path / "2", 1).leave_note()
    elif other == "earlier":
        of(tmp_path, 1, generation=2).leave_note()
    elif other == "damaged":
        (tmp_path / ".train.rank1.here").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match=r"CHECKPOINT_NOT_SHARED: .*rank 0 has not seen .* ranks \[1\]"):
        first.await_others(goes_on, 0)


def test_an_interrupted_generation_does_not_wait(tmp_path: Path) -> None:
    def ended() -> None:
        raise GenerationInterrupted(3, "a rank is lost")

    with pytest.raises(GenerationInterrupted):
        of(tmp_path).await_others(ended)


def test_only_a_note_of_its_own_generation_is_removed(tmp_path: Path) -> None:
    of(tmp_path, generation=4).leave_note()
    of(tmp_path).remove_note()
    assert [one.name for one in tmp_path.iterdir()] == [".train.rank0.here"]
