"""A file that a framework wrote becomes a checkpoint, or stays as it is without a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.checkpoint import adopt, catalogue, names, verify
from recovery.checkpoint.contribution import Manifest, ManifestFile
from recovery.errors import CheckpointManifestError, CheckpointWriteError
from tests.checkpoint.conftest import Save

CONTENT = b"parameters" * 1_000


def completes(name: str) -> Callable[[tuple[ManifestFile, ...]], Manifest]:
    return lambda files: Save(Path()).manifest(name, files=files, step=7)


@pytest.mark.parametrize("suffix", names.SUFFIXES)
def test_a_finished_file_of_either_format_is_found_and_verified(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train_1-2_3{suffix}"
    path.write_bytes(CONTENT)
    # As MindSpore leaves them.
    path.chmod(0o400)

    manifest = adopt.adopt(path, completes(path.name), lambda: True)

    assert verify.check(path) == manifest
    [held] = catalogue.scan(tmp_path, "train_1", job=manifest.job, run=manifest.run, rank=manifest.rank)
    assert (held.step, held.path, held.file_bytes) == (7, str(path), len(CONTENT))


def test_a_file_that_changes_behind_its_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-1_1.safetensors"
    path.write_bytes(CONTENT)
    adopt.adopt(path, completes(path.name), lambda: True)
    path.write_bytes(CONTENT[:-1] + b"x")

    with pytest.raises(Exception, match="CHECKPOINT_DIGEST"):
        verify.check(path)


def test_a_manifest_of_one_format_does_not_vouch_for_the_other(tmp_path: Path) -> None:
    path, other = tmp_path / "train-1_1.safetensors", tmp_path / "train-1_1.ckpt"
    for file in (path, other):
        file.write_bytes(CONTENT)
    adopt.adopt(path, completes(path.name), lambda: True)

    with pytest.raises(CheckpointManifestError, match="of another file"):
        verify.check(other)


@pytest.mark.parametrize("kind", ["absent", "link", "directory"])
def test_what_is_no_plain_file_gets_no_manifest(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train-1_1.ckpt"
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    if kind == "directory":
        path.mkdir()

    with pytest.raises(CheckpointWriteError, match="train-1_1"):
        adopt.adopt(path, completes(path.name), lambda: True)
    assert not names.manifest_path(path).exists()
