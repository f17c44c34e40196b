"""Whatever ends the thread of a save, the session is told that it failed, and the next save is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import pytest
from typing_extensions import override

import recovery
from recovery.checkpoint import adopt
from recovery.training.adopted_folders import AdoptFolders
from recovery.training.state import Snapshot
from tests.cluster.small_job import Tally
from tests.training import test_adopted_folders, test_memory_checkpoints
from tests.training.test_save_out_of_turn import NotSaved, OneRank
from tests.worker.test_broken_threads import without_threads

MISTAKE = "ValueError: a mistake of the program"


class Broken(Tally):
    """A state that fails in the thread that writes its copy, at the first save."""

    def __init__(self) -> None:
        super().__init__()
        self.saves = 0

    @override
    def snapshot(self) -> Snapshot:
        self.saves += 1
        return Copy() if self.saves == 1 else super().snapshot()


class Copy(Tally):
    @override
    def write(self, stream: BinaryIO) -> None:
        raise ValueError("a mistake of the program")


def saver(directory: Path, every: int) -> recovery.ModelCheckpoint:
    config = recovery.CheckpointConfig(save_checkpoint_steps=every, keep_checkpoint_max=3, async_save=True)
    return recovery.ModelCheckpoint("t", directory, config)


def test_a_save_on_the_disk(tmp_path: Path) -> None:
    rank = OneRank()
    rank.state = Broken()

    assert rank.train(saver(tmp_path, 2), 4, asked_at=()) == [4]
    assert rank.not_saved == [NotSaved(2, MISTAKE, False)]


def test_a_save_in_memory(tmp_path: Path) -> None:
    base = tmp_path / "memory"
    base.mkdir()
    rank = test_memory_checkpoints.Rank(base)
    rank.state = Broken()

    assert sorted(rank.train(saver(tmp_path, 5), 5, asked_at=())) == [4, 5]
    assert rank.not_saved == [NotSaved(2, MISTAKE, True)]


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = test_adopted_folders.Rank()

    def fail(*arguments: object, **named: object) -> Any:
        raise ValueError("a mistake of the program")

    folders = AdoptFolders(tmp_path, "f-{step}", shared=False)
    folders.on_begin(session.at(1))
    test_adopted_folders.write(tmp_path / "f-1")
    with monkeypatch.context() as patch:
        patch.setattr(adopt, "adopt_folder", fail)
        folders.on_step_end(session.at(1))
        folders._join()
    test_adopted_folders.write(tmp_path / "f-2")
    folders.on_step_end(session.at(2))
    folders.on_end(session.at(2))

    assert session.not_saved == [NotSaved(1, MISTAKE, False)]
    assert [held.step for held in session.published] == [2]


def test_a_step_waits_for_its_save_where_no_thread_can_be_started(tmp_path: Path) -> None:
    rank = OneRank()
    session: Any = rank
    callback = saver(tmp_path, 1)
    callback.on_begin(session)
    rank.step, rank.epoch, rank.step_in_epoch = 1, 1, 1
    with without_threads():
        callback.on_step_end(session)

    assert (rank.saved, rank.not_saved) == ([1], [])
    for close in rank.closers:
        close()
