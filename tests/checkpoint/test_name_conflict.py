"""A name that is saved under again: what may be needed to understand a loss keeps its bytes, and a replaced process renames nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

from recovery.checkpoint import adopt, catalogue, name_conflict, names, verify
from recovery.checkpoint.durable_files import opened_directory
from recovery.checkpoint.publish import Content, stage
from recovery.errors import CheckpointWriteError

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save

NAME = "train-1_1.ckpt"


def flipped(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1, *content[1:]]))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def without_manifest(path: Path) -> None:
    names.manifest_path(path).unlink()


def with_another_manifest(path: Path) -> None:
    names.manifest_path(path).write_bytes(b"{}")


@pytest.mark.parametrize("spoil", [flipped, cut, without_manifest, with_another_manifest])
def test_a_file_that_is_not_what_it_was_keeps_its_bytes_under_another_name(
    save: Save, spoil: Callable[[Path], None]
) -> None:
    path = save(NAME, content=b"first", generation=1)
    spoil(path)
    beside = names.manifest_path(path)
    before = path.read_bytes(), beside.read_bytes() if beside.exists() else None

    save(NAME, content=b"second", generation=2)

    assert verify.check(path).generation == 2
    kept = path.with_name("train-1_1.ckpt.kept-1"), path.with_name("train-1_1.json.kept-1")
    assert (kept[0].read_bytes(), kept[1].read_bytes() if kept[1].exists() else None) == before
    assert [one.generation for one in catalogue.scan(save.directory, None, job="job-a", run=1, rank=0)] == [2]
    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train"


def test_every_bad_file_is_kept_and_none_is_written_over(save: Save) -> None:
    for generation in (1, 2, 3):
        flipped(save(NAME, content=b"of generation %d" % generation, generation=generation))
    save(NAME, generation=4)

    found = sorted(path.name for path in save.directory.glob("*.ckpt*"))
    assert found == [NAME, *(f"{NAME}.kept-{number}" for number in (1, 2, 3))]
    contents = [(save.directory / f"{NAME}.kept-{number}").read_bytes()[1:] for number in (1, 2, 3)]
    assert contents == [b"f generation %d" % number for number in (1, 2, 3)]


def test_a_file_of_another_rank_and_an_earlier_generation_is_kept(save: Save) -> None:
    path = save(NAME, content=b"copied here", rank=1, generation=1)

    save(NAME, content=b"ours", rank=0, generation=2)

    assert verify.check(path).rank == 0
    assert path.with_name(f"{NAME}.kept-1").read_bytes() == b"copied here"


def test_a_whole_file_of_a_rolled_back_history_is_written_over(save: Save) -> None:
    save(NAME, content=b"first", generation=1)
    path = save(NAME, content=b"second", generation=2)

    assert sorted(one.name for one in save.directory.iterdir()) == [NAME, names.manifest_path(path).name]


def test_a_manifest_whose_file_is_gone_is_written_over(save: Save) -> None:
    save(NAME, generation=1).unlink()
    path = save(NAME, generation=2)

    assert sorted(one.name for one in save.directory.iterdir()) == [NAME, names.manifest_path(path).name]


def test_a_keeping_that_was_cut_off_is_completed_under_the_same_number(save: Save) -> None:
    path = save(NAME, content=b"first", generation=1)
    flipped(path)
    # As far as a process came that was killed.
    names.manifest_path(path).rename(path.with_name("train-1_1.json.kept-1"))

    save(NAME, content=b"second", generation=2)

    kept = sorted(one.name for one in save.directory.glob("*.kept-*"))
    assert kept == [f"{NAME}.kept-1", "train-1_1.json.kept-1"]


def test_what_is_kept_is_durable_before_the_name_is_used(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(NAME, generation=1)
    cut(path)
    conflict = name_conflict.find(path, save.manifest(generation=2))
    synced: list[list[str]] = []
    real = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(sorted(one.name for one in save.directory.iterdir()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    with opened_directory(save.directory) as opened:
        name_conflict.resolve(opened, conflict)

    assert synced == [[f"{NAME}.kept-1", "train-1_1.json.kept-1"]]


# --- who may rename --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [[False], [True, False], [True, True, False]])
def test_a_process_that_lost_its_place_gives_no_name_any_more(save: Save, answers: list[bool]) -> None:
    older = save(NAME, content=b"older", generation=1)
    staged = stage(save.directory, [Content(NAME, lambda stream: _write(stream, b"newer"))])
    asked = iter(answers)

    with pytest.raises(CheckpointWriteError, match="another one has its place now"):
        staged.finish(
            lambda files: save.manifest(files=files, generation=2),
            lambda: next(asked),
        )

    assert next(asked, None) is None, "it went on after the answer"
    assert not list(save.directory.glob(".*"))
    if len(answers) < 3:
        assert older.read_bytes() == b"older"
    if len(answers) == 1:
        assert verify.check(older).generation == 1
    else:
        assert catalogue.scan(save.directory, None, job="job-a", run=1, rank=0) == ()


def test_a_framework_s_file_of_a_process_that_lost_its_place_gets_no_manifest(save: Save) -> None:
    save.directory.mkdir()
    path = save.directory / NAME
    path.write_bytes(b"state")

    with pytest.raises(CheckpointWriteError, match="another one has its place now"):
        adopt.adopt(path, lambda files: save.manifest(files=files), lambda: False)

    assert [one.name for one in save.directory.iterdir()] == [NAME]


def _write(stream: BinaryIO, content: bytes) -> None:
    stream.write(content)


@pytest.mark.parametrize("spoiled", [".ckpt", ".side", ".json"])
def test_a_set_of_which_one_file_is_damaged_is_kept_whole_under_one_number(save: Save, spoiled: str) -> None:
    path = save.set(NAME, {"train-1_1.side": b"first"}, generation=1)
    flipped(path.with_suffix(spoiled))
    before = {file.name: file.read_bytes() for file in save.directory.iterdir()}

    save.set(NAME, {"train-1_1.side": b"second"}, generation=2)

    assert verify.check(path).generation == 2
    assert {name: (save.directory / f"{name}.kept-1").read_bytes() for name in before} == before


def test_a_set_of_a_rolled_back_history_is_written_over_with_all_its_files(save: Save) -> None:
    save.set(NAME, {"train-1_1.side": b"first", "train-1_1.part": b"first"}, generation=1)

    path = save.set(NAME, {"train-1_1.side": b"second"}, generation=2)

    assert sorted(one.name for one in save.directory.iterdir()) == [NAME, "train-1_1.json", "train-1_1.side"]
    assert verify.check(path).generation == 2
