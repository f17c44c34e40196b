"""What is left of a folder that a framework wrote goes when retention would let the whole folder go."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from recovery.checkpoint import catalogue, framework_folders
from recovery.checkpoint.retention import Retention, Rule
from tests.checkpoint.test_folders import SHARED, adopted, written

RANKS = (0, 1)


def saved(directory: Path, steps: int) -> None:
    """Folders that two ranks wrote together."""
    for step in range(1, steps + 1):
        folder = written(directory / f"step_{step}")
        for rank in RANKS:
            adopted(folder, rank, len(RANKS), step=step)


def retain(directory: Path) -> None:
    """Keep two, as each rank does."""
    for rank in RANKS:
        look = functools.partial(
            catalogue.list_directory, directory, catalogue.FOLDERS, job="job-a", run=1, rank=rank
        )
        rule = Rule(keep_checkpoint_max=2, keep_checkpoint_per_n_minutes=0)
        Retention(look, rule, lambda path: False, rank=rank).apply(previous_durable_step=3)


@pytest.mark.parametrize("gone", ["__1_0.distcp", ".metadata"])
def test_a_folder_of_which_something_is_gone_goes_when_it_would_whole(tmp_path: Path, gone: str) -> None:
    saved(tmp_path, 5)
    for step in (1, 5):
        (tmp_path / f"step_{step}" / gone).unlink()

    retain(tmp_path)

    assert {one.name for one in tmp_path.iterdir()} == {
        f"step_{step}{ends}" for step in (3, 4, 5) for ends in ("", ".rank0.json", ".rank1.json")
    }
    assert (tmp_path / "step_5" / "rng_state_1.pth").exists(), "what is newer stays, whole or not"


def test_what_no_manifest_names_any_more_stays(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    (tmp_path / "step_1/__1_0.distcp").unlink()
    (tmp_path / "step_1.rank0.json").unlink()

    retain(tmp_path)

    assert not (tmp_path / "step_1.rank1.json").exists()
    of_rank_0 = {name for name in SHARED if framework_folders.answers_for(name, rank=0, world_size=2)}
    folder = tmp_path / "step_1"
    left = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
    assert left == of_rank_0 - set(framework_folders.FINISHED)
