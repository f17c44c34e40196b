"""A folder that a framework wrote becomes a checkpoint whole, or stays as it is without a manifest."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery.checkpoint import adopt, catalogue, framework_folders, names, verify
from recovery.checkpoint.contribution import Layout, Manifest, ManifestFile
from recovery.checkpoint.retention import Retention, Rule, remove
from recovery.core.messages import HeldCheckpoint
from recovery.errors import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointManifestError,
    CheckpointWriteError,
)
from tests.checkpoint.conftest import Save

CHILD = Path(__file__).with_name("publish_child.py")
SHARED = {
    "__0_0.distcp": b"zero" * 99,
    "__1_0.distcp": b"one" * 99,
    ".metadata": b"who has what",
    "rng_state_1.pth": b"dice",
    "model/weights.safetensors": b"w" * 999,
}


def written(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    """What a framework has done."""
    for name, content in (files or SHARED).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def adopted(folder: Path, rank: int = 0, shared_by: int = 1, **fields: Any) -> Manifest:
    facts = {"layout": Layout.FOREIGN, "integrated": False, "rank": rank, **fields}
    return adopt.adopt_folder(
        folder,
        lambda files: Save(folder.parent).manifest(**{**facts, "files": files}),
        lambda: True,
        rank=rank,
        shared_by=shared_by,
    )


def held(directory: Path, rank: int | None = 0) -> tuple[HeldCheckpoint, ...]:
    return catalogue.scan(directory, catalogue.FOLDERS, job="job-a", run=1, rank=rank)


# --- a folder of one rank -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint-500", "v1.2-step.500", "step_500.tar"])
def test_all_that_is_in_it_is_listed_found_and_verified(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / name)

    manifest = adopted(folder, step=500)

    assert [one.name for one in manifest.files] == sorted(f"{name}/{one}" for one in SHARED)
    assert verify.check(folder) == manifest
    assert (tmp_path / f"{name}.json").exists()
    [found] = held(tmp_path)
    assert (found.step, found.path, found.digest) == (500, f"{folder}/", manifest.digest)
    assert found.is_folder
    assert catalogue.scan(tmp_path, None, job="job-a", run=1, rank=0) == (found,)
    assert catalogue.scan(tmp_path, "train", job="job-a", run=1, rank=0) == ()


@pytest.mark.parametrize("name", sorted(SHARED))
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "link"])
def test_whatever_is_changed_in_it_later_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    folder = written(tmp_path / "step_5")
    adopted(folder)
    file = folder / name
    content = file.read_bytes()
    file.unlink()
    if damage == "flip":
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    if damage == "cut":
        file.write_bytes(content[:-1])
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CheckpointError, match=name):
        verify.check(folder)
    if damage != "flip":
        look = catalogue.list_directory(tmp_path, catalogue.FOLDERS, job="job-a", run=1, rank=0)
        assert (look.held, len(look.passed_over)) == ((), 1)


@pytest.mark.parametrize("what", ["link", "link to a folder", "pipe", "empty", "absent", "itself a link"])
def test_what_holds_anything_but_plain_files_gets_no_manifest(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "step_5"
    if what not in ("absent", "itself a link"):
        folder.mkdir()
    if what == "link":
        (written(folder) / "more").symlink_to(folder / ".metadata")
    if what == "link to a folder":
        (written(folder) / "more").symlink_to(tmp_path)
    if what == "pipe":
        os.mkfifo(written(folder) / "more")
    if what == "itself a link":
        folder.symlink_to(written(tmp_path / "other"))

    with pytest.raises(CheckpointWriteError, match="step_5"):
        adopted(folder)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("name", ["train-1_5.ckpt", "train-1_5", "model.safetensors", ".hidden", "n" * 1100])
def test_a_name_that_would_be_taken_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointWriteError, match=r"its name|its path"):
        adopted(tmp_path / name)


@pytest.mark.parametrize("late", ["late", ".metadata"])
def test_a_folder_that_grows_while_it_is_read_is_not_taken(tmp_path: Path, late: str) -> None:
    folder = written(tmp_path / "step_5")

    def manifest(files: tuple[ManifestFile, ...]) -> Manifest:
        with (folder / late).open("ab") as file:
            file.write(b"still writing")
        return Save(tmp_path).manifest(layout=Layout.FOREIGN, integrated=False, files=files)

    with pytest.raises(CheckpointWriteError, match="still being"):
        adopt.adopt_folder(folder, manifest, lambda: True, rank=0, shared_by=1)
    assert not list(tmp_path.glob("*.json"))


def test_a_manifest_cannot_list_any_name_or_number_of_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointWriteError, match="cannot list"):
        adopted(written(tmp_path / "step_5", {"a" * 200 + f"/{'b' * 200}" * 5: b""}))
    with pytest.raises(CheckpointWriteError, match="do not fit"):
        adopted(written(tmp_path / "step_6", {f"{number:0240}": b"" for number in range(3000)}))


def test_a_step_that_is_done_again_gets_a_new_manifest(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_5")
    adopted(folder, generation=1)
    (folder / ".metadata").write_bytes(b"other bytes!")

    manifest = adopted(folder, generation=2)

    assert verify.check(folder) == manifest
    assert [one.generation for one in held(tmp_path)] == [2]


@pytest.mark.parametrize(
    "other",
    [{"job": "job-b"}, {"run": 2}, {"rank": 1}, {"generation": 9}],
    ids=lambda other: next(iter(other)),
)
def test_the_manifest_of_another_is_never_written_over(tmp_path: Path, other: dict[str, Any]) -> None:
    folder = written(tmp_path / "step_5")
    adopt.adopt_folder(
        folder,
        lambda files: Save(tmp_path).manifest(**{"layout": Layout.FOREIGN, "files": files, **other}),
        lambda: True,
        rank=0,
        shared_by=1,
    )
    before = (tmp_path / "step_5.json").read_bytes()

    with pytest.raises(CheckpointWriteError, match="saved before"):
        adopted(folder)
    assert (tmp_path / "step_5.json").read_bytes() == before


def test_a_file_of_the_user_under_the_manifests_name_stays(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_5")
    (tmp_path / "step_5.json").write_text('{"learning_rate": 1}')

    with pytest.raises(CheckpointWriteError, match="move it away"):
        adopted(folder)
    assert (tmp_path / "step_5.json").read_text() == '{"learning_rate": 1}'
    # It lies beside a folder, so somebody may take it for a damaged manifest.
    look = catalogue.list_directory(tmp_path, catalogue.FOLDERS, job="job-a", run=1, rank=0)
    assert [one.path for one in look.passed_over] == [str(folder)]


def test_a_process_that_was_replaced_names_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_5")
    with pytest.raises(CheckpointWriteError, match="another one has its place"):
        adopt.adopt_folder(
            folder,
            lambda files: Save(tmp_path).manifest(files=files, layout=Layout.FOREIGN),
            lambda: False,
            rank=0,
            shared_by=1,
        )
    assert not list(tmp_path.glob("*.json"))


# --- a folder of all ranks --------------------------------------------------------------------------------------------------


def test_each_rank_answers_for_its_own_and_together_they_do_for_all(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_5")

    first, second = adopted(folder, 0, 2), adopted(folder, 1, 2)

    assert [one.name for one in first.files] == [
        "step_5/.metadata",
        "step_5/__0_0.distcp",
        "step_5/model/weights.safetensors",
    ]
    assert [one.name for one in second.files] == [
        "step_5/.metadata",
        "step_5/__1_0.distcp",
        "step_5/rng_state_1.pth",
    ]
    for rank, manifest in ((0, first), (1, second)):
        assert verify.check(folder, rank=rank) == manifest
        assert [(one.path, one.digest) for one in held(tmp_path, rank)] == [(f"{folder}/", manifest.digest)]
        assert not catalogue.list_directory(tmp_path, None, job="job-a", run=1, rank=rank).passed_over
    (folder / "rng_state_1.pth").write_bytes(b"kcid")
    assert verify.check(folder, rank=0) == first
    with pytest.raises(CheckpointDigestError):
        verify.check(folder, rank=1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("__3_0.distcp", 3),
        ("optimizer_0/__2_11.distcp", 2),
        ("rng_state_3.pth", 3),
        ("random_states_1.pkl", 1),
        ("rng_state.pth", 0),
        ("model-00003-of-00004.safetensors", 0),
        ("__7_0.distcp", 0),
        ("__1_0.distcp/x", 0),
    ],
)
def test_a_file_belongs_to_exactly_one_rank(name: str, rank: int) -> None:
    assert [one for one in range(4) if framework_folders.answers_for(name, rank=one, world_size=4)] == [rank]


def test_a_rank_of_which_nothing_is_there_has_nothing_to_answer_for(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_5", {"weights.bin": b"w"})
    with pytest.raises(CheckpointWriteError, match="no file in it is of rank 1"):
        adopted(folder, 1, 2)


def test_what_is_finished_says_so(tmp_path: Path) -> None:
    assert not framework_folders.is_finished(tmp_path / "absent")
    assert not framework_folders.is_finished(written(tmp_path / "a", {"__0_0.distcp": b""}))
    assert framework_folders.is_finished(written(tmp_path / "b", {".metadata": b""}))
    assert framework_folders.is_finished(written(tmp_path / "c", {"trainer_state.json": b"{}"}))


# --- removal ----------------------------------------------------------------------------------------------------------------


def test_a_folder_goes_whole_and_its_manifest_with_it(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        adopted(written(tmp_path / f"step_{step}"), step=step)
    retention = Retention(
        functools.partial(catalogue.list_directory, tmp_path, catalogue.FOLDERS, job="job-a", run=1, rank=0),
        Rule(keep_checkpoint_max=2, keep_checkpoint_per_n_minutes=0),
        lambda path: False,
    )

    retention.apply(previous_durable_step=3)

    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "step_3",
        "step_3.json",
        "step_4",
        "step_4.json",
    ]


@pytest.mark.parametrize("gone", ["a file", "a folder within", "all of it"])
def test_what_vanishes_meanwhile_is_gone_already(tmp_path: Path, gone: str) -> None:
    folder = written(tmp_path / "step_1")
    adopted(folder)
    if gone == "a file":
        (folder / ".metadata").unlink()
    else:
        (folder / "model/weights.safetensors").unlink()
        (folder / "model").rmdir()
    if gone == "all of it":
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    remove(folder)

    assert not list(tmp_path.iterdir())


def test_what_was_not_saved_is_not_removed(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_1")
    adopted(folder)
    (folder / "model/notes.txt").write_text("mine")

    remove(folder)

    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [folder / "model/notes.txt"]


def test_a_manifest_that_nobody_can_read_removes_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_1")
    adopted(folder)
    (tmp_path / "step_1.json").write_text("{")

    with pytest.raises(OSError, match="cannot be read"):
        remove(folder)
    assert len([one for one in folder.rglob("*") if one.is_file()]) == len(SHARED)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_rank_leaves_no_folder(tmp_path: Path, order: tuple[int, int]) -> None:
    folder = written(tmp_path / "step_1")
    for rank in (0, 1):
        adopted(folder, rank, 2)

    remove(folder, rank=order[0])
    # What the other one answers for is still whole.
    assert verify.check(folder, rank=order[1]).rank == order[1]
    remove(folder, rank=order[1])

    assert not list(tmp_path.iterdir())


def test_a_manifest_without_its_folder_is_passed_over(tmp_path: Path) -> None:
    folder = written(tmp_path / "step_1", {"a": b"a"})
    adopted(folder)
    (folder / "a").unlink()
    folder.rmdir()

    with pytest.raises(CheckpointError, match="CHECKPOINT_MISSING"):
        verify.check(folder)
    look = catalogue.list_directory(tmp_path, catalogue.FOLDERS, job="job-a", run=1, rank=0)
    assert [(one.path, one.step) for one in look.passed_over] == [(str(folder), 1)]


def test_a_manifest_of_another_folder_vouches_for_none(tmp_path: Path) -> None:
    adopted(written(tmp_path / "step_1"))
    written(tmp_path / "step_2")
    (tmp_path / "step_1.json").rename(tmp_path / "step_2.json")

    with pytest.raises(CheckpointManifestError, match="of another file"):
        verify.check(tmp_path / "step_2")
    assert names.manifest_beside(tmp_path / "step_2", 3) == tmp_path / "step_2.json"


# --- death --------------------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["kill", "fail"])
@pytest.mark.parametrize("scenario", ["fresh folder", "again folder"])
def test_whatever_call_it_is_stopped_at_a_manifest_is_of_what_is_there(
    tmp_path: Path, mode: str, scenario: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(recovery.__file__).parents[1])}
    command = [sys.executable, str(CHILD), mode, scenario, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    sweep = [(tmp_path / str(number), code) for number, code in map(json.loads, done.splitlines())]

    assert sweep[-1][1] == 0
    assert {code for _, code in sweep[:-1]} == ({-9} if mode == "kill" else {43})
    for directory, code in sweep:
        found = held(directory)
        assert found[-1].step == 1, "the older one is gone"
        assert [one.step for one in found if one.generation == 2] in ([], [2])
        if code == 0:
            assert (found[0].step, found[0].generation) == (2, 2)
        for one in found:
            # The framework has written over a folder of the rolled-back history: its manifest is of other bytes.
            if one.generation == 2 or one.step == 1:
                assert verify.check(Path(one.path)).digest == one.digest
        if mode == "fail":
            assert not [file for file in directory.iterdir() if file.name.endswith(".tmp")]
