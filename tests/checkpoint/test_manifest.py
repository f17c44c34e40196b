"""A manifest is what was written, or it is refused."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import FileRole, Layout
from recovery.errors import CheckpointManifestError, CheckpointWriteError
from tests.checkpoint.conftest import Save, listed


def _sealed(body: bytes) -> bytes:
    return (
        b'{"manifest":' + body + b',"manifest_sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
    )


def _with(save: Save, **fields: Any) -> bytes:
    """A well sealed manifest with other fields."""
    _, content = manifests.seal(save.manifest())
    return _sealed(json.dumps({**json.loads(content)["manifest"], **fields}).encode())


def _file(**fields: Any) -> dict[str, Any]:
    """One entry of its list of files."""
    return {"name": "train-1_1.ckpt", "role": "state", "bytes": 5, "sha256": "ab" * 32, **fields}


_FORMAT_1 = {
    "format": 1, "job": "job-a", "run": 1, "rank": 0, "world_size": 2, "incarnation": 1, "generation": 1, "step": 1,
    "epoch": 1, "step_in_epoch": 1, "file": "train-1_1.ckpt", "digest": "cd" * 32, "file_bytes": 5,
    "versions": {"torch": "2.13.0"}, "integrated": True,
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train-1_1.json"


def test_what_is_written_is_read(save: Save, path: Path) -> None:
    manifest = save.manifest(job="job \u00e4\u4e2d", versions={"torch": "2.13.0+cpu", "numpy": "2.1"})

    written = manifests.write(path, manifest)

    assert manifests.read_manifest(path) == written
    assert msgspec.structs.replace(written, digest="") == manifest
    assert path.stat().st_mode & 0o777 == 0o600


def test_people_can_read_it_with_any_json_tool(save: Save, path: Path) -> None:
    manifests.write(path, save.manifest())

    assert json.loads(path.read_text())["manifest"]["files"][0]["name"] == "train-1_1.ckpt"
    assert '\n  "rank": 0,\n' in path.read_text()


def test_every_changed_bit_is_noticed(save: Save, path: Path) -> None:
    _, good = manifests.seal(save.manifest())

    for place in range(len(good)):
        bit = random.Random(place).randrange(8)
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
        with pytest.raises(CheckpointManifestError):
            manifests.read_manifest(path)


def test_every_truncation_is_noticed(save: Save, path: Path) -> None:
    _, good = manifests.seal(save.manifest())

    # The last byte is the line end.
    for length in range(len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointManifestError):
            manifests.read_manifest(path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": 4}, r"newer release .* \(format 4, this release reads up to 3\)"),
        ({"format": 4, "something": "new"}, "newer release"),
        ({"format": 1}, "no manifest"),
        ({"format": 0}, "no manifest"),
        ({"something": "new"}, "no manifest"),
        ({"files": []}, "no manifest"),
        ({"files": [_file(name="../train-1_1.ckpt")]}, "names a path"),
        ({"files": [_file(name="/etc/passwd")]}, "names a path"),
        ({"files": [_file(), _file(name="a/b")]}, "names a path"),
        ({"files": [_file(), _file(name="..")]}, "leads elsewhere"),
        ({"files": [_file(name="")]}, "leads elsewhere"),
        ({"files": [_file(name="folder/../../x", role="foreign")]}, "leads elsewhere"),
        ({"files": [_file(name="/etc/passwd", role="foreign")]}, "leads elsewhere"),
        ({"files": [_file(name="a/x", role="foreign"), _file(name="b/x", role="foreign")]}, "two folders"),
        ({"files": [_file(), _file()]}, "twice"),
        ({"files": [_file(name="train-1_2.ckpt")]}, "of another file"),
        ({"files": [_file(role="unheard of")]}, "no manifest"),
        ({"files": [_file(sha256="0" * 63)]}, "no manifest"),
        ({"files": [_file(sha256="A" * 64)]}, "no manifest"),
        ({"files": [_file(bytes=-1)]}, "no manifest"),
        ({"files": [{**_file(), "something": "new"}]}, "no manifest"),
        ({"layout": "unheard of"}, "no manifest"),
        ({"replicated": "ab"}, "no manifest"),
        ({"rank": 2}, "rank 2 is outside a world of 2"),
        ({"rank": -1}, "no manifest"),
        ({"step": 2**60}, "no manifest"),
        ({"step": 1.5}, "no manifest"),
        ({"integrated": 1}, "no manifest"),
        ({"job": "j" * 2_000}, "no manifest"),
        ({"versions": {"torch": 2}}, "no manifest"),
    ],
)
def test_a_well_sealed_manifest_that_cannot_be_true_is_refused(
    save: Save, path: Path, fields: dict[str, Any], reason: str
) -> None:
    path.write_bytes(_with(save, **fields))

    with pytest.raises(CheckpointManifestError, match=reason):
        manifests.read_manifest(path)


def test_a_manifest_of_the_releases_before_is_read_into_the_same_shape(path: Path) -> None:
    path.write_bytes(_sealed(json.dumps(_FORMAT_1).encode()))

    found = manifests.read_manifest(path)

    [file] = found.files
    assert (file.name, file.role, file.file_bytes, file.digest) == (
        "train-1_1.ckpt",
        FileRole.STATE,
        5,
        "cd" * 32,
    )
    assert (found.file, found.file_bytes, found.layout) == ("train-1_1.ckpt", 5, Layout.RANK)
    assert found.digest == "cd" * 32, "stores and plans of those releases know it by the digest of its file"


def test_a_shard_of_the_releases_before_is_one(path: Path) -> None:
    path.write_bytes(_sealed(json.dumps({**_FORMAT_1, "integrated": False}).encode()))

    found = manifests.read_manifest(path)

    assert (found.files[0].role, found.layout) == (FileRole.SHARD, Layout.SHARDED)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"file": "../train-1_1.ckpt"}, "names a path"),
        ({"file": "/etc/passwd"}, "names a path"),
        ({"file": "train-1_2.ckpt"}, "of another file"),
        ({"digest": "0" * 63}, "no manifest"),
        ({"files": []}, "no manifest"),
    ],
)
def test_a_manifest_of_the_releases_before_that_cannot_be_true_is_refused(
    path: Path, fields: dict[str, Any], reason: str
) -> None:
    path.write_bytes(_sealed(json.dumps({**_FORMAT_1, **fields}).encode()))

    with pytest.raises(CheckpointManifestError, match=reason):
        manifests.read_manifest(path)


def test_several_files_are_one_checkpoint_named_by_the_seal(save: Save, path: Path) -> None:
    files = (
        listed("train-1_1.ckpt", b"state"),
        listed("train-1_1.side", b"generators", FileRole.SIDE),
    )

    written = manifests.write(path, save.manifest(files=files, layout=Layout.SHARED, replicated="ef" * 32))

    assert manifests.read_manifest(path) == written
    assert written.file_bytes == len(b"state") + len(b"generators")
    assert written.paths(path.parent) == (path.with_suffix(".ckpt"), path.with_suffix(".side"))
    assert written.digest == json.loads(path.read_text())["manifest_sha256"]


def test_a_folder_is_named_by_what_its_files_have_in_common(save: Save, tmp_path: Path) -> None:
    files = tuple(
        listed(f"checkpoint-500/{name}", b"foreign", FileRole.FOREIGN)
        for name in ("a/weights", "trainer.json")
    )

    manifests.write(tmp_path / "checkpoint-500.json", save.manifest(files=files, layout=Layout.FOREIGN))

    assert manifests.read_manifest(tmp_path / "checkpoint-500.json").file == "checkpoint-500"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"manifest":' + b"[" * 100_000,
        b'{"manifest": {"format": 1}}',
        b"\xff\xfe",
        b'{"manifest": {"job": "\xff"}, "manifest_sha256": ""}',
        _sealed(b'{"format": 1}'),
        _sealed(b'{"format": NaN}'),
        _sealed(b'{"format": 1, "job": "\xff"}'),
        _sealed(b"[" * 2_000 + b"]" * 2_000),
    ],
    ids=range(13),
)
def test_what_is_no_manifest_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(CheckpointManifestError, match=r"no manifest|does not fit"):
        manifests.read_manifest(path)


def test_a_changed_value_is_distinguished_from_nonsense(save: Save, path: Path) -> None:
    path.write_bytes(manifests.seal(save.manifest())[1].replace(b'"step": 1', b'"step": 2'))

    with pytest.raises(CheckpointManifestError, match="changed after it was written"):
        manifests.read_manifest(path)


def test_a_huge_file_is_not_read_into_memory(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(CheckpointManifestError, match="larger than 1048576 bytes"):
        manifests.read_manifest(path)


def test_a_link_a_pipe_and_a_directory_are_no_manifest(save: Save, tmp_path: Path, path: Path) -> None:
    manifests.write(path, save.manifest())
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointManifestError, match="symbolic link"):
        manifests.read_manifest(path)

    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointManifestError, match="not a plain file"):
        manifests.read_manifest(path)

    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointManifestError, match="not a plain file"):
        manifests.read_manifest(path)


def test_an_absent_manifest_says_what_that_means(path: Path) -> None:
    with pytest.raises(CheckpointManifestError, match="no checkpoint"):
        manifests.read_manifest(path)


def test_a_manifest_that_cannot_be_written_leaves_the_one_before(save: Save, path: Path) -> None:
    path.mkdir()

    with pytest.raises(CheckpointWriteError, match="directory"):
        manifests.write(path, save.manifest())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_manifest_is_only_written_beside_its_file(save: Save, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="beside its file"):
        manifests.write(tmp_path / "train-1_2.json", save.manifest())
