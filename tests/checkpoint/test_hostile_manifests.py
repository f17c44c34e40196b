"""Whatever lies where a manifest belongs, well sealed or not: a manifest within its bounds, or an error of ours, and no other."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from recovery.checkpoint import manifest as manifests
from recovery.errors import CheckpointManifestError

_PLACE: dict[str, Any] = {
    "job": "job",
    "run": 1,
    "rank": 0,
    "world_size": 2,
    "incarnation": 1,
    "generation": 1,
    "step": 10,
    "epoch": 1,
    "step_in_epoch": 10,
    "versions": {"torch": "2.13"},
    "integrated": True,
}
FORMAT_1 = {**_PLACE, "format": 1, "file": "train-1_1.ckpt", "digest": "ab" * 32, "file_bytes": 1}
FILE = {"name": "train-1_1.ckpt", "role": "state", "bytes": 1, "sha256": "ab" * 32}
FORMAT_2 = {**_PLACE, "format": 2, "layout": "rank", "files": [FILE], "replicated": ""}
FORMAT_3 = {**FORMAT_2, "format": 3, "position": {"step": 10, "epoch": 1, "batch": 0, "samples": 0}}
_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=2_000),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name, "train-1_1.json")


def read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        found = manifests.read_manifest(path)
    except CheckpointManifestError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most examples are refused, some are right
        return
    assert found.file == "train-1_1.ckpt"
    assert 0 <= found.rank < found.world_size


def test_the_one_that_is_changed_here_is_a_good_one(path: Path) -> None:
    for good in (FORMAT_1, FORMAT_2, FORMAT_3):
        path.write_bytes(_sealed(good))
        assert manifests.read_manifest(path).step == 10


def _sealed(content: Any) -> bytes:
    body = json.dumps(content).encode()
    return (
        b'{"manifest":' + body + b',"manifest_sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
    )


@pytest.mark.parametrize("good", [FORMAT_1, FORMAT_2, FORMAT_3], ids=["format 1", "format 2", "format 3"])
@given(data=some.data())
def test_any_value_under_a_good_seal_is_read_or_refused(
    path: Path, good: dict[str, Any], data: some.DataObject
) -> None:
    key = some.sampled_from(sorted(good)) | some.text(max_size=5)
    read(path, _sealed({**good, **data.draw(some.dictionaries(key, _values, max_size=3))}))


@given(some.lists(some.dictionaries(some.sampled_from(sorted(FILE)), _values, max_size=2), max_size=3))
def test_any_list_of_files_under_a_good_seal_is_read_or_refused(
    path: Path, changes: list[dict[str, Any]]
) -> None:
    read(path, _sealed({**FORMAT_2, "files": [{**FILE, **change} for change in changes]}))


@given(_values)
def test_anything_under_a_good_seal_is_read_or_refused(path: Path, content: Any) -> None:
    read(path, _sealed(content))


@given(some.binary(max_size=300))
def test_any_bytes_are_read_or_refused(path: Path, content: bytes) -> None:
    read(path, content)
