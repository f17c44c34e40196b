"""A step is whole when every rank's files of one history can be read; anything else is refused with what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.checkpoint import whole_step
from recovery.checkpoint.contribution import FileRole, Layout, Manifest, ManifestFile
from recovery.checkpoint.publish import Content, publish
from recovery.errors import CheckpointDigestError, CheckpointManifestError


def save(
    directory: Path,
    rank: int,
    *,
    step: int = 10,
    generation: int = 1,
    run: int = 1,
    job: str = "here",
    world_size: int = 2,
) -> Path:
    def manifest(files: tuple[ManifestFile, ...]) -> Manifest:
        return Manifest(
            job=job, run=run, rank=rank, world_size=world_size, incarnation=1, generation=generation, step=step, epoch=1,
            step_in_epoch=step, files=files, layout=Layout.SHARDED, versions={}, integrated=False,
        )  # fmt: skip

    name = f"train-{run}_{step}.ckpt"
    content = Content(name, lambda stream: None, FileRole.SHARD)
    _, path = publish(directory, [content], manifest)
    return path


def test_the_newest_whole_step_of_the_newest_run_counts(tmp_path: Path) -> None:
    for rank in range(2):
        save(tmp_path / str(rank), rank, step=90)
        save(tmp_path / str(rank), rank, run=2, step=10)
        save(tmp_path / str(rank), rank, run=2, step=20)
    save(tmp_path / "0", 0, run=2, step=30)
    found = whole_step.find(tmp_path)
    assert (found.of.run, found.of.step) == (2, 20)
    assert [manifest.rank for manifest in found.manifests] == [0, 1]
    assert found.paths == tuple(tmp_path / f"{rank}/train-2_20.ckpt" for rank in range(2))
    assert whole_step.find(tmp_path, 10).of.run == 2
    found.check()


def test_files_of_two_histories_of_a_step_are_not_one_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "0", 0, generation=1)
    save(tmp_path / "1", 1, generation=2)
    with pytest.raises(
        CheckpointManifestError, match="of step 10, saved by 2 ranks, the files of rank 0 cannot"
    ):
        whole_step.find(tmp_path)


def test_worlds_of_two_sizes_are_not_one_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "0", 0, world_size=2)
    save(tmp_path / "1", 1, world_size=4)
    with pytest.raises(CheckpointManifestError, match="cannot be read from here"):
        whole_step.find(tmp_path)


@pytest.mark.parametrize("step", [None, 20])
def test_a_directory_without_the_step_is_refused(tmp_path: Path, step: int | None) -> None:
    save(tmp_path / "0", 0, step=10) if step else None
    with pytest.raises(CheckpointManifestError, match="it holds no checkpoint"):
        whole_step.find(tmp_path, step)
    with pytest.raises(CheckpointManifestError, match="no directory"):
        whole_step.find(tmp_path / "absent", step)


def test_two_jobs_in_one_directory_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "0", 0, job="mine")
    save(tmp_path / "1", 1, job="theirs")
    with pytest.raises(CheckpointManifestError, match=r"several jobs \(mine, theirs\)"):
        whole_step.find(tmp_path)


def test_a_file_is_digested_before_it_is_used(tmp_path: Path) -> None:
    paths = [save(tmp_path / str(rank), rank) for rank in range(2)]
    found = whole_step.find(tmp_path)
    paths[1].write_bytes(b"x")
    with pytest.raises(CheckpointDigestError, match="1/train"):
        found.check()


def test_one_rank_of_a_sharded_state_is_not_taken_for_all(tmp_path: Path) -> None:
    path = save(tmp_path / "0", 0)
    with pytest.raises(CheckpointManifestError, match="a part of the state"):
        whole_step.of_file(path)
