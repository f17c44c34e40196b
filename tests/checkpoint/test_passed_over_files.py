"""What a look passes over is named with its reason; a file of a plan is compared with everything that the plan says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from recovery.checkpoint import catalogue, names, verify
from recovery.errors import CheckpointDigestError, CheckpointManifestError

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save


def look(directory: Path, **wanted: Any) -> catalogue.Listing:
    return catalogue.list_directory(directory, "train", **{"job": "job-a", "run": 1, "rank": 0, **wanted})


def found(there: catalogue.Listing) -> list[tuple[str, int, str]]:
    """(name, step, reason) of what was passed over."""
    return [(Path(one.path).name, one.step, one.reason) for one in there.passed_over]


def test_what_is_passed_over_is_named_newest_first_with_its_reason(save: Save) -> None:
    save("train-1_1.ckpt")
    names.manifest_path(save("train-1_2.ckpt")).unlink()
    save("train-1_3.ckpt").write_bytes(b"")
    save("train-1_4.ckpt").unlink()
    save("train-1_5.ckpt", rank=1)
    save("train-1_6.ckpt", job="job-b")
    save("train-1_7.ckpt", run=2)
    save("other-1_8.ckpt", rank=1)
    (save.directory / "train-1_9.json").write_text('{"mine": "notes"}')

    there = look(save.directory)

    assert [one.step for one in there.held] == [1]
    reasons = found(there)
    assert [one[:2] for one in reasons] == [
        ("train-1_7.ckpt", 7),
        ("train-1_6.ckpt", 6),
        ("train-1_5.ckpt", 5),
        ("train-1_4.ckpt", 4),
        ("train-1_3.ckpt", 3),
        ("train-1_2.ckpt", 0),
    ]
    sentences = [reason for _, _, reason in reasons]
    assert sentences[:3] == [
        "it is of job 'job-a' run 2, not of job 'job-a' run 1",
        "it is of job 'job-b' run 1, not of job 'job-a' run 1",
        "it is of rank 1, not of rank 0",
    ]
    assert sentences[3].startswith("CHECKPOINT_MISSING: ")
    assert "size 5 expected, 0 found" in sentences[4]
    assert "it is missing, so the file beside it is no checkpoint" in sentences[5]


def test_a_manifest_of_another_run_whose_file_is_gone_is_nothing_of_ours(save: Save) -> None:
    save("train-1_1.ckpt", run=2).unlink()
    save("train-1_2.ckpt", rank=1).unlink()

    assert look(save.directory) == catalogue.Listing((), ())


def test_who_has_no_rank_yet_takes_the_files_of_any(save: Save) -> None:
    save("train-1_1.ckpt", rank=1)

    assert [one.step for one in look(save.directory, rank=None).held] == [1]


def test_a_directory_that_cannot_be_listed_hides_no_other(save: Save, tmp_path: Path) -> None:
    save("train-1_1.ckpt")
    (tmp_path / "file").write_bytes(b"")
    places = [
        (str(tmp_path / "file"), "train"),
        (str(save.directory), "train"),
        (str(tmp_path / "no"), "train"),
    ]

    there = catalogue.list_all(places, job="job-a", run=1, rank=0)

    assert [one.step for one in there.held] == [1]
    [one] = there.passed_over
    assert one.path == str(tmp_path / "file")
    assert "cannot be listed" in one.reason


def test_of_two_files_of_a_step_in_two_directories_the_newer_generation_is_taken(save: Save) -> None:
    save("train-1_1.ckpt", generation=1)
    later = save.directory.with_name("later")
    older, save.directory = save.directory, later
    save("train-1_1.ckpt", generation=2)
    for order in (
        [(str(older), "train"), (str(later), "train")],
        [(str(later), "train"), (str(older), "train")],
    ):
        [held] = catalogue.list_all(order, job="job-a", run=1, rank=0).held
        assert held.generation == 2
    [held] = catalogue.list_all([(str(older), "train")], job="job-a", run=1, rank=0).held
    assert held.generation == 1


def test_a_path_that_no_message_could_carry_is_still_named(tmp_path: Path, save: Save) -> None:
    save.directory = tmp_path / "/".join(["d" * 200] * 6)
    save.directory.mkdir(parents=True)
    (save.directory / "train-1_1.ckpt").write_bytes(b"")

    [one] = look(save.directory).passed_over
    assert one.path.endswith("/train-1_1.ckpt")
    assert msgspec.convert(msgspec.to_builtins(one), type(one)) == one


WANTED: dict[str, Any] = {"job": "job-a", "run": 1, "rank": 0, "world_size": 2, "step": 1}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"job": "job-b"}, "it is of job 'job-b' run 1, not of job 'job-a' run 1"),
        ({"run": 2}, "it is of job 'job-a' run 2, not of job 'job-a' run 1"),
        ({"rank": 1}, "it is of rank 1, not of rank 0"),
        ({"world_size": 3}, "it is of a world of 3 ranks, not of 2"),
        ({"step": 7}, "it is of step 7, not of step 1"),
    ],
)
def test_a_whole_file_of_another_place_is_not_what_the_plan_wants(
    save: Save, other: dict[str, Any], reason: str
) -> None:
    path = save("train-1_1.ckpt", **other)
    digest = save.manifest().digest

    with pytest.raises(CheckpointManifestError, match=reason):
        verify.check_wanted(path, verify.Wanted(**WANTED, digest=digest))


def test_a_whole_file_that_is_not_the_one_of_the_index_is_not_what_the_plan_wants(save: Save) -> None:
    path = save("train-1_1.ckpt")

    assert verify.check_wanted(path, verify.Wanted(**WANTED, digest=verify.check(path).digest)).step == 1
    with pytest.raises(CheckpointDigestError):
        verify.check_wanted(path, verify.Wanted(**WANTED, digest="ab" * 32))
