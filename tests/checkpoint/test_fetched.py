"""A contribution that comes from elsewhere: published only when all of it is what the scheduler has named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from recovery.checkpoint import catalogue, fetched, names, verify
from recovery.checkpoint.contribution import FileRole
from recovery.checkpoint.fetched import Receipt, sealed_bytes, there_already
from recovery.checkpoint.manifest import seal
from recovery.checkpoint.verify import Wanted
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointDigestError, CheckpointManifestError, CheckpointWriteError
from tests.checkpoint.conftest import listed

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save

NAME = "train-1_7.ckpt"


def wanted_of(path: Path, **other: object) -> Wanted:
    found = verify.check(path)
    wanted = Wanted(
        job=found.job,
        run=found.run,
        rank=found.rank,
        world_size=found.world_size,
        step=found.step,
        digest=found.digest,
    )
    return msgspec.structs.replace(wanted, **other)


def give(receipt: Receipt, path: Path) -> None:
    """Let all of a checkpoint come in, in pieces of two bytes."""
    manifest = receipt.accept(sealed_bytes(path))
    for number, file in enumerate(manifest.paths(path.parent)):
        fill(receipt, number, file.read_bytes())


def fill(receipt: Receipt, number: int, content: bytes) -> None:
    receipt.begin(number)
    for at in range(0, len(content), 2):
        receipt.take(content[at : at + 2])
    receipt.end(number)


def left_in(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir()) if directory.is_dir() else []


@pytest.fixture
def source(save: Save) -> Path:
    return save.set(NAME, {"train-1_7.rng": b"generators"}, rank=1)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "copies" / "run-1" / "rank-1"


def test_what_fits_is_published_as_it_was(source: Path, there: Path) -> None:
    with Receipt(there, wanted_of(source)) as receipt:
        give(receipt, source)
        assert all(name.startswith(".") for name in left_in(there))
        held = receipt.publish()

    assert left_in(there) == ["train-1_7.ckpt", "train-1_7.json", "train-1_7.rng"]
    assert verify.check(there / NAME) == verify.check(source)
    assert sealed_bytes(there / NAME) == sealed_bytes(source)
    assert catalogue.scan(there, None, job="job-a", run=1, rank=1) == (held,)
    assert held.path == str(there / NAME)


def test_a_checkpoint_of_the_releases_before_comes_in_too(save: Save, there: Path) -> None:
    path = save(NAME, b"of format 1")
    manifest = verify.check(path)
    facts = {
        "format": 1,
        **{
            key: getattr(manifest, key)
            for key in (
                *("job", "run", "rank", "world_size", "incarnation", "generation", "step", "epoch"),
                *("step_in_epoch", "file", "file_bytes", "versions", "integrated"),
            )
        },
        "digest": manifest.files[0].digest,
    }
    body = json.dumps(facts).encode()
    import hashlib

    seal = hashlib.sha256(body).hexdigest()
    names.manifest_path(path).write_bytes(
        b'{"manifest": ' + body + b', "manifest_sha256": "' + seal.encode() + b'"}'
    )

    with Receipt(there, wanted_of(path)) as receipt:
        give(receipt, path)
        held = receipt.publish()

    assert held.digest == manifest.files[0].digest
    assert verify.check(there / NAME).digest == held.digest


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"job": "another"}, CheckpointManifestError),
        ({"run": 2}, CheckpointManifestError),
        ({"rank": 0}, CheckpointManifestError),
        ({"world_size": 3}, CheckpointManifestError),
        ({"step": 8}, CheckpointManifestError),
        ({"digest": "0" * 64}, CheckpointDigestError),
    ],
)
def test_another_s_manifest_is_refused(
    source: Path, there: Path, other: dict[str, object], error: type[Exception]
) -> None:
    with Receipt(there, wanted_of(source, **other)) as receipt, pytest.raises(error):
        receipt.accept(sealed_bytes(source))
    assert left_in(there) == []


def test_a_changed_manifest_is_refused(source: Path, there: Path) -> None:
    changed = sealed_bytes(source).replace(b'"epoch": 1', b'"epoch": 2')
    with (
        Receipt(there, wanted_of(source)) as receipt,
        pytest.raises(CheckpointManifestError, match="changed"),
    ):
        receipt.accept(changed)


def test_a_damaged_file_is_refused_and_another_source_may_bring_it(source: Path, there: Path) -> None:
    with Receipt(there, wanted_of(source)) as receipt:
        receipt.accept(sealed_bytes(source))
        fill(receipt, 0, b"state")
        with pytest.raises(CheckpointDigestError, match="sha256"):
            fill(receipt, 1, b"generatorz")
        with pytest.raises(CheckpointDigestError, match="size"):
            fill(receipt, 1, b"generators and more")
        fill(receipt, 1, b"generators")
        receipt.publish()

    assert verify.check(there / NAME) == verify.check(source)


def test_what_is_not_published_leaves_nothing(source: Path, there: Path) -> None:
    with Receipt(there, wanted_of(source)) as receipt:
        give(receipt, source)
        receipt.begin(1)
        receipt.take(b"gene")
    assert left_in(there) == []


def test_a_process_that_lost_its_place_publishes_nothing(source: Path, there: Path) -> None:
    with Receipt(there, wanted_of(source)) as receipt:
        give(receipt, source)
        with pytest.raises(CheckpointWriteError, match="another one has its place"):
            receipt.publish(lambda: False)
    assert left_in(there) == []


def test_what_would_fill_the_disk_is_refused_before_it_comes(
    source: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched, "SPARE_BYTES", 1 << 62)
    with Receipt(there, wanted_of(source)) as receipt, pytest.raises(CheckpointWriteError, match="to spare"):
        receipt.accept(sealed_bytes(source))
    assert left_in(there) == []


def test_a_folder_of_a_framework_is_not_copied_and_no_source_is_to_blame(save: Save, there: Path) -> None:
    files = tuple(listed(f"folder/{name}", b"x", FileRole.FOREIGN) for name in ("a", "b"))
    sealed, content = seal(save.manifest(files=files))
    wanted = Wanted(job="job-a", run=1, rank=0, world_size=2, step=1, digest=sealed.digest)
    with Receipt(there, wanted) as receipt, pytest.raises(CheckpointWriteError, match="not copied"):
        receipt.accept(content)


def test_what_lies_there_already_is_found(source: Path, there: Path) -> None:
    wanted = wanted_of(source)
    assert there_already(there, wanted) is None
    with Receipt(there, wanted) as receipt:
        give(receipt, source)
        held: HeldCheckpoint = receipt.publish()

    assert there_already(there, wanted) == held
    assert there_already(there, msgspec.structs.replace(wanted, digest="0" * 64)) is None
    (there / NAME).write_bytes(b"stat3")
    assert there_already(there, wanted) is None


def test_a_damaged_copy_moves_aside_and_keeps_its_bytes(source: Path, there: Path) -> None:
    for _ in range(2):
        with Receipt(there, wanted_of(source)) as receipt:
            give(receipt, source)
            receipt.publish()
        assert verify.check(there / NAME) == verify.check(source)
        (there / NAME).write_bytes(b"stat3")
    assert (there / f"{NAME}.kept-1").read_bytes() == b"stat3"
