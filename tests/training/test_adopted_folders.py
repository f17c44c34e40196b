"""Folders that a framework writes beside the steps are taken when they are finished, as of the step that they are of."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

import recovery.torch as rt
from recovery.checkpoint import catalogue, names
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.adopt import adopt_folder
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointError, SettingError, UsageError
from recovery.training import folder_load, shared_directory_probe
from tests.training.test_save_out_of_turn import OneRank


class Rank(OneRank):
    """One of some ranks, at a step."""

    def __init__(self, rank: int = 0, world_size: int = 1, generation: int = 1) -> None:
        super().__init__()
        self.rank, self.world_size, self.generation = rank, world_size, generation
        self.places: list[tuple[Path, str]] = []
        self.published: list[HeldCheckpoint] = []

    @override
    def checkpoint_directory(self, directory: Path, prefix: str) -> None:
        self.places.append((directory, prefix))

    @override
    def checkpoint_published(self, checkpoint: HeldCheckpoint, replica: Mapping[str, str] = {}) -> None:
        self.published.append(checkpoint)

    def check(self) -> None:
        return

    def at(self, step: int) -> Any:
        """Go to a step; the face that the code under test sees."""
        self.step, self.epoch, self.step_in_epoch = step, 1 + (step - 1) // 10, 1 + (step - 1) % 10
        return self


def write(folder: Path, *, finished: bool = True, content: bytes = b"weights") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__0_0.distcp").write_bytes(content)
    if finished:
        finish(folder)


def finish(folder: Path) -> None:
    """As torch.distributed.checkpoint does it."""
    (folder / ".metadata.tmp").write_bytes(b"who has what")
    (folder / ".metadata.tmp").replace(folder / ".metadata")


def published(rank: Rank) -> list[tuple[int, int, int, str]]:
    return [(one.step, one.epoch, one.step_in_epoch, Path(one.path).name) for one in rank.published]


def test_a_folder_is_taken_when_it_is_finished_as_of_its_own_step(tmp_path: Path) -> None:
    rank, adopter = Rank(), rt.AdoptFolders(tmp_path, "step_{step}")
    adopter.on_begin(rank.at(10))
    for step in range(11, 15):
        if step == 12:
            write(tmp_path / "step_12", finished=False)
        if step == 14:
            finish(tmp_path / "step_12")
        adopter.on_step_end(rank.at(step))
    write(tmp_path / "step_14")
    write(tmp_path / "other_13")
    adopter.on_end(rank.at(14))

    assert published(rank) == [(12, 2, 2, "step_12"), (14, 2, 4, "step_14")]
    assert rank.places == [(tmp_path, catalogue.FOLDERS)]


def test_what_lay_there_before_is_taken_only_when_it_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "checkpoint-11")
    write(tmp_path / "checkpoint-12")
    rank, adopter = Rank(generation=2), rt.AdoptFolders(tmp_path)
    adopter.on_begin(rank.at(10))
    adopter.on_step_end(rank.at(11))
    adopter.on_step_end(rank.at(12))
    assert not rank.published

    write(tmp_path / "checkpoint-12", content=b"written again")
    write(tmp_path / "checkpoint-9")
    adopter.on_end(rank.at(12))

    assert published(rank) == [(12, 2, 2, "checkpoint-12")]
    assert "checkpoint-9 reason='its step was not taken in this generation'" in caplog.text


def test_a_job_does_not_begin_beside_folders_of_one_that_nobody_knows(tmp_path: Path) -> None:
    earlier, adopter = Rank(), rt.AdoptFolders(tmp_path / "out")
    adopter.on_begin(earlier.at(0))
    write(tmp_path / "out/checkpoint-1")
    adopter.on_step_end(earlier.at(1))
    adopter.on_end(earlier.at(1))
    assert published(earlier)

    rank = Rank()
    rank.job, rank.recovery_path = "another", tmp_path / "recovery"
    with pytest.raises(CheckpointError, match=r"CHECKPOINTS_UNKNOWN: .* holds 1 checkpoints of job job up"):
        rt.AdoptFolders(tmp_path / "out").on_begin(rank.at(0))
    rt.AdoptFolders(tmp_path / "out").on_begin(rank.at(1))


def test_no_more_are_kept_than_wanted_and_what_others_remove_is_forgotten(tmp_path: Path) -> None:
    rank, adopter = Rank(), rt.AdoptFolders(tmp_path, "step_{step}", keep=2)
    adopter.on_begin(rank.at(0))
    for step in range(1, 6):
        write(tmp_path / f"step_{step}")
        rank.previous_durable_step = step - 1
        if step == 4:
            for file in (tmp_path / "step_3").iterdir():
                file.unlink()
            (tmp_path / "step_3").rmdir()
        adopter.on_step_end(rank.at(step))
        adopter._join()

    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "step_4",
        "step_4.json",
        "step_5",
        "step_5.json",
    ]


def test_a_call_takes_it_at_the_step_of_now(tmp_path: Path) -> None:
    rank = Rank()
    write(tmp_path / "epoch 3", finished=False)
    with pytest.raises(UsageError, match="before its first step"):
        rt.adopt_folder(rank.at(0), tmp_path / "epoch 3")

    rt.adopt_folder(rank.at(7), tmp_path / "epoch 3")
    rt.adopt_folder(rank.at(8), tmp_path / "absent")

    assert published(rank) == [(7, 1, 7, "epoch 3")]


def test_the_session_of_an_earlier_generation_is_not_kept(tmp_path: Path) -> None:
    """It holds the model."""
    first, second = Rank(), Rank(generation=2)
    write(tmp_path / "one")
    rt.adopt_folder(first.at(7), tmp_path / "one")
    earlier = weakref.ref(first)
    del first
    rt.adopt_folder(second.at(7), tmp_path / "one")
    gc.collect()

    assert earlier() is None


@pytest.mark.parametrize("pattern", ["checkpoint-*", "a/{step}", "{step}-{step}"])
def test_a_pattern_must_name_the_step(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(SettingError, match=r"SETTING_RANGE: .*step"):
        rt.AdoptFolders(tmp_path, pattern)
    with pytest.raises(SettingError, match=r"SETTING_RANGE: .*keep"):
        rt.AdoptFolders(tmp_path, keep=1)


def test_ranks_that_do_not_see_one_folder_are_told_at_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_directory_probe, "PATIENCE_MS", 100)
    write(tmp_path / "step_5")
    rank = Rank(rank=0, world_size=2)
    with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_SHARED"):
        rt.adopt_folder(rank.at(5), tmp_path / "step_5")

    rt.adopt_folder(Rank(rank=1, world_size=2).at(5), tmp_path / "step_5", shared=False)
    assert (tmp_path / "step_5.json").exists()


# --- a folder of all ranks is taken only as a whole -----------------------------------------------------------------------

OWN = Manifest(
    job="j",
    run=1,
    rank=0,
    world_size=2,
    incarnation=1,
    generation=1,
    step=30,
    epoch=2,
    step_in_epoch=10,
    files=(),
    layout=Layout.FOREIGN,
    versions={},
    integrated=False,
)


def save(folder: Path, rank: int, **other: Any) -> Manifest:
    return adopt_folder(
        folder,
        lambda files: msgspec.structs.replace(OWN, files=files, **{"rank": rank, **other}),
        lambda: True,
        rank=rank,
        shared_by=2,
    )


def test_what_nobody_answers_for_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "step_30"
    write(folder)
    (folder / "__1_0.distcp").write_bytes(b"one")
    own, _ = save(folder, 0), save(folder, 1)

    folder_load.check_others(folder, own)
    assert "not_verified" not in caplog.text
    (folder / "late.bin").write_bytes(b"?")
    folder_load.check_others(folder, own)
    assert "event=folder_files_not_verified" in caplog.text
    assert "late.bin" in caplog.text


@pytest.mark.parametrize(
    "other", [{"job": "k"}, {"run": 2}, {"step": 20}, {"generation": 2}, {"world_size": 3}], ids=str
)
def test_a_part_of_another_history_is_refused_by_name(tmp_path: Path, other: dict[str, Any]) -> None:
    folder = tmp_path / "step_30"
    write(folder)
    own, _ = save(folder, 0), save(folder, 1, **other)

    with pytest.raises(CheckpointError, match=next(iter(other))):
        folder_load.check_others(folder, own)


@pytest.mark.parametrize("damage", ["flip", "gone", "manifest gone"])
def test_another_ranks_part_must_be_whole(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "step_30"
    write(folder)
    part = folder / "__1_0.distcp"
    part.write_bytes(bytes(range(64)))
    own, _ = save(folder, 0), save(folder, 1)
    if damage == "flip":
        content = part.read_bytes()
        part.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    if damage == "gone":
        part.unlink()
    if damage == "manifest gone":
        names.rank_manifest_path(folder, 1).unlink()

    with pytest.raises(CheckpointError):
        folder_load.check_others(folder, own)
    assert manifests.read_manifest(names.rank_manifest_path(folder, 0)) == own
