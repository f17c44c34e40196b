"""A file that differs from its manifest in one bit is noticed, and never repaired."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from recovery.checkpoint import names, verify
from recovery.checkpoint.publish import Content, publish
from recovery.errors import CheckpointDigestError, CheckpointError, CheckpointManifestError
from tests.open_files import open_files

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save


def test_a_good_file_gives_its_manifest(save: Save) -> None:
    # More than two chunks.
    path = save(content=random.Random(1).randbytes(3_000_000))

    assert verify.check(path) == verify.check_size(path)
    assert verify.check(path).file_bytes == 3_000_000


def test_an_empty_state_is_a_good_file(save: Save) -> None:
    assert verify.check(save(content=b"")).file_bytes == 0


def test_three_hundred_random_single_bit_flips_are_all_noticed(save: Save) -> None:
    dice = random.Random(20_261_120)
    content = dice.randbytes(4_096)
    path = save(content=content)

    for _ in range(300):
        place, bit = dice.randrange(len(content)), dice.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        with pytest.raises(CheckpointDigestError) as caught:
            verify.check(path)
        assert caught.value.parts["field"] == "sha256"


def test_a_flip_in_a_file_of_torch_save_is_noticed_where_torch_loads_it(save: Save) -> None:
    import torch

    state = {"weight": torch.zeros(1_000)}
    _, path = publish(
        save.directory,
        [Content("train-1_1.ckpt", lambda stream: torch.save(state, stream))],
        lambda files: save.manifest(files=files),
    )
    content = bytearray(path.read_bytes())
    content[content.index(b"\0" * 4_000) + 1_003] ^= 0x40
    path.write_bytes(content)

    assert not torch.equal(torch.load(path, weights_only=True)["weight"], state["weight"])
    with pytest.raises(CheckpointDigestError, match="sha256"):
        verify.check(path)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_truncated_file_is_noticed_by_its_size(save: Save, length: int) -> None:
    path = save(content=b"state")
    path.write_bytes(b"state"[:length])

    for check in (verify.check, verify.check_size):
        with pytest.raises(CheckpointDigestError, match=f"size 5 expected, {length} found"):
            check(path)


def test_a_longer_file_is_noticed(save: Save) -> None:
    path = save(content=b"state")
    path.write_bytes(b"state+")

    with pytest.raises(CheckpointDigestError, match="size"):
        verify.check_size(path)


def test_a_missing_file_is_missing_whether_or_not_its_manifest_is_there(save: Save) -> None:
    path = save()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"CHECKPOINT_MISSING: .*train-1_1"):
        verify.check(path)

    names.manifest_path(path).unlink()
    with pytest.raises(CheckpointError, match="CHECKPOINT_MISSING"):
        verify.check_size(path)


def test_a_file_without_manifest_is_no_checkpoint(save: Save) -> None:
    path = save()
    names.manifest_path(path).unlink()

    with pytest.raises(CheckpointManifestError, match="missing"):
        verify.check(path)


def test_a_link_to_a_good_file_is_refused(save: Save, tmp_path: Path) -> None:
    path = save()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CheckpointDigestError, match="symbolic link"):
        verify.check(path)


def test_a_pipe_is_refused_and_does_not_make_the_reader_wait(save: Save) -> None:
    path = save()
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(CheckpointDigestError, match="not a plain file"):
        verify.check(path)


def test_a_read_error_is_said_and_not_raised_raw(save: Save) -> None:
    path = save()
    [listed] = verify.check(path).files

    with pytest.raises(CheckpointDigestError, match="planted"), verify._opened(path, listed):
        raise OSError(5, "planted")


def test_nothing_is_repaired_and_nothing_deleted(save: Save) -> None:
    path = save(content=b"state")
    path.write_bytes(b"stale")
    before = {file: file.read_bytes() for file in save.directory.iterdir()}

    with pytest.raises(CheckpointDigestError):
        verify.check(path)

    assert {file: file.read_bytes() for file in save.directory.iterdir()} == before


def test_no_descriptor_is_left_open(save: Save) -> None:
    path = save()
    before = open_files()

    for damage in (b"state", b"stale", b"short"[:2]):
        path.write_bytes(damage)
        for _ in range(20):
            with contextlib.suppress(CheckpointDigestError):
                verify.check(path)

    assert not open_files() - before


def test_every_flip_in_any_file_of_a_set_is_noticed(save: Save) -> None:
    path = save.set("train-1_1.ckpt", {"train-1_1.side": b"generators", "train-1_1.part": b"weights"})

    for file in save.directory.iterdir():
        good = file.read_bytes()
        for place in range(len(good) - 1):
            file.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
            with pytest.raises((CheckpointDigestError, CheckpointManifestError)):
                verify.check(path)
        file.write_bytes(good)
    verify.check(path)


@pytest.mark.parametrize("suffix", [".ckpt", ".side"])
def test_a_file_of_a_set_that_is_gone_or_cut_is_named(save: Save, suffix: str) -> None:
    path = save.set("train-1_1.ckpt", {"train-1_1.side": b"generators"})
    file = path.with_suffix(suffix)
    file.write_bytes(file.read_bytes()[:-1])

    for check in (verify.check, verify.check_size):
        with pytest.raises(CheckpointDigestError, match=f"{file.name}.*size"):
            check(path)

    file.unlink()
    for check in (verify.check, verify.check_size):
        with pytest.raises(CheckpointError, match=f"CHECKPOINT_MISSING: .*{file.name}"):
            check(path)
