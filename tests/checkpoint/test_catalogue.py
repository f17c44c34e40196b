"""A scan lists what is whole and ours; a prefix is never shared with another run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recovery.checkpoint import catalogue, names
from recovery.checkpoint.contribution import Layout
from recovery.core.ids import Generation, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointManifestError, UsageError

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save


def _scan(directory: Path, prefix: str | None = "train", **wanted: Any) -> tuple[HeldCheckpoint, ...]:
    return catalogue.scan(directory, prefix, **{"job": "job-a", "run": 1, "rank": 0, **wanted})


def _names(held: tuple[HeldCheckpoint, ...]) -> list[str]:
    return [Path(one.path).name for one in held]


def test_a_missing_directory_holds_nothing(tmp_path: Path) -> None:
    assert _scan(tmp_path / "absent") == ()
    assert catalogue.free_prefix(tmp_path / "absent", "train", job="job-a", run=1) == "train"


@pytest.mark.parametrize("ask", [_scan, lambda path: catalogue.free_prefix(path, "train", job="j", run=1)])
def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path, ask: Any) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(CheckpointManifestError, match="cannot be listed"):
        ask(tmp_path / "file")


def test_a_scan_gives_what_the_manifest_says(save: Save) -> None:
    path = save("train-2_3.ckpt", content=b"state", generation=4)

    (held,) = _scan(save.directory)

    assert held == HeldCheckpoint(
        run=RunId(1),
        generation=Generation(4),
        step=103,
        epoch=2,
        step_in_epoch=3,
        path=str(path),
        digest=json.loads(path.with_suffix(".json").read_text())["manifest_sha256"],
        file_bytes=5,
    )
    assert Path(held.path).is_absolute()


@pytest.mark.parametrize(("layout", "is_said"), [(Layout.RANK, True), (Layout.SHARED, False)])
def test_a_scan_says_what_ranks_have_alike_unless_it_was_compared_already(
    save: Save, layout: Layout, is_said: bool
) -> None:
    save("train-2_3.ckpt", layout=layout, replicated="a" * 64)
    (held,) = _scan(save.directory)
    assert held.replica == ("a" * 64 if is_said else "")


def test_a_scan_is_newest_step_first_then_newest_generation(save: Save) -> None:
    for name, generation in (("train-1_9", 1), ("train-1_10", 1), ("train-2_1", 1), ("train_1-1_10", 2)):
        save(f"{name}.ckpt", generation=generation)

    assert _names(_scan(save.directory, None)) == [
        "train-2_1.ckpt",
        "train_1-1_10.ckpt",
        "train-1_10.ckpt",
        "train-1_9.ckpt",
    ]


def test_a_scan_takes_only_the_prefix_asked_for(save: Save) -> None:
    save("train-1_1.ckpt")
    save("train-x-1_2.ckpt")

    assert _names(_scan(save.directory, "train")) == ["train-1_1.ckpt"]
    assert _names(_scan(save.directory, "train-x")) == ["train-x-1_2.ckpt"]


def test_a_scan_takes_only_the_job_run_and_rank_asked_for(save: Save) -> None:
    save("train-1_1.ckpt")
    save("train-1_2.ckpt", job="job-b")
    save("train-1_3.ckpt", run=2)
    save("train-1_4.ckpt", rank=1)

    assert _names(_scan(save.directory)) == ["train-1_1.ckpt"]
    assert _names(_scan(save.directory, rank=None)) == ["train-1_4.ckpt", "train-1_1.ckpt"]
    assert _names(_scan(save.directory, run=2)) == ["train-1_3.ckpt"]


def test_a_scan_leaves_out_what_is_not_whole(save: Save, tmp_path: Path) -> None:
    save("train-1_1.ckpt")
    names.manifest_path(save("train-1_2.ckpt")).unlink()
    save("train-1_3.ckpt").write_bytes(b"")
    save("train-1_4.ckpt").unlink()
    names.manifest_path(save("train-1_5.ckpt")).write_bytes(b"{}")
    linked = save("train-1_6.ckpt")
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    (save.directory / ".train-1_7.ckpt.1-0.tmp").write_bytes(b"state")
    (save.directory / "train-1_8.ckpt").mkdir()
    (save.directory / os.fsdecode(b"\xff-1_9.ckpt")).write_bytes(b"state")

    assert _names(_scan(save.directory, None)) == ["train-1_1.ckpt"]


def test_a_copied_checkpoint_under_another_name_is_not_taken_for_that_place(save: Save) -> None:
    path = save("train-1_1.ckpt")
    copy = path.with_name("train-9_9.ckpt")
    copy.write_bytes(path.read_bytes())
    names.manifest_path(copy).write_bytes(names.manifest_path(path).read_bytes())

    assert _names(_scan(save.directory)) == ["train-1_1.ckpt"]


@pytest.mark.parametrize("theirs", [{"job": "job-b"}, {"run": 2}])
def test_a_prefix_of_another_job_or_run_is_in_use_and_the_next_number_is_free(
    save: Save, theirs: dict[str, Any]
) -> None:
    save("train-1_1.ckpt", **theirs)
    save("train_1-1_1.ckpt", **theirs)
    save("other-1_1.ckpt", **theirs)

    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train_2"
    assert catalogue.free_prefix(save.directory, "train_2", job="job-a", run=1) == "train_2"


def test_a_run_keeps_its_prefix_in_every_incarnation(save: Save) -> None:
    save("train-1_1.ckpt", run=1)
    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=2) == "train_1"
    save("train_1-1_1.ckpt", run=2)

    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=2) == "train_1"
    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train"


def test_a_run_keeps_its_prefix_when_a_manifest_of_its_own_was_damaged(save: Save) -> None:
    save("train-1_1.ckpt")
    names.manifest_path(save("train-1_2.ckpt")).write_bytes(b"damaged")

    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train"


def test_a_checkpoint_of_nobody_is_not_ours(save: Save) -> None:
    save.directory.mkdir()
    (save.directory / "train-1_1.ckpt").write_bytes(b"saved by hand")

    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train_1"


def test_a_json_file_of_nobody_under_a_name_of_ours_is_not_written_over(save: Save) -> None:
    save.directory.mkdir()
    (save.directory / "train-1_1.json").write_text('{"mine": "notes"}')
    (save.directory / "settings.json").write_text("{}")

    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train_1"


def test_a_manifest_left_ready_by_a_killed_writer_names_the_owner_of_its_file(save: Save) -> None:
    path = save("train-1_1.ckpt")
    beside = names.manifest_path(path)
    (save.directory / ".train-1_1.json.1-0000.tmp").write_bytes(b"an earlier, torn one")
    beside.rename(save.directory / ".train-1_1.json.2-0000.tmp")

    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=1) == "train"
    assert catalogue.free_prefix(save.directory, "train", job="job-a", run=2) == "train_1"


@pytest.mark.parametrize("prefix", ["", "../up", "a/b", ".hidden"])
def test_a_prefix_with_a_path_in_it_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        catalogue.free_prefix(tmp_path, prefix, job="job-a", run=1)
