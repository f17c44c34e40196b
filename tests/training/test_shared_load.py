"""Another rank's part is taken only whole, and only if it belongs to one's own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.checkpoint import names
from recovery.checkpoint.contribution import FileRole, Layout, Manifest
from recovery.checkpoint.publish import Content, publish
from recovery.errors import CheckpointError, UsageError
from recovery.training import shared_load, shared_names

OWN = Manifest(
    job="j",
    run=1,
    rank=0,
    world_size=2,
    incarnation=1,
    generation=1,
    step=30,
    epoch=2,
    step_in_epoch=10,
    files=(),
    layout=Layout.SHARED,
    replicated="a" * 64,
    versions={},
    integrated=False,
)


def save(directory: Path, rank: int, **other: Any) -> tuple[Manifest, Path]:
    part = names.file_name(shared_names.rank_prefix("train", rank), epoch=2, step_in_epoch=10)
    side = shared_names.side_path(Path(part)).name
    contents = [
        Content(part, lambda stream: _write(stream, b"part %d" % rank * 99), FileRole.PART),
        Content(side, lambda stream: _write(stream, b"side %d" % rank * 99), FileRole.SIDE),
    ]
    made = msgspec.structs.replace(OWN, rank=rank, **other)
    return publish(directory, contents, lambda files: msgspec.structs.replace(made, files=files))


def _write(stream: Any, content: bytes) -> None:
    stream.write(content)


def test_all_ranks_parts_are_found_by_rank(tmp_path: Path) -> None:
    own, path = save(tmp_path, 0)
    _, other = save(tmp_path, 1, generation=2)
    assert shared_load.checked_parts(path, own) == (path, other)
    # What only the other rank needs is not looked at.
    shared_names.side_path(other).write_bytes(b"damaged")
    assert shared_load.checked_parts(path, own) == (path, other)


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": "k"},
        {"run": 2},
        {"step": 31},
        {"world_size": 3},
        {"layout": Layout.RANK},
        {"replicated": "b" * 64},
        {"replicated": ""},
    ],
    ids=lambda wrong: "-".join(f"{name}" for name in wrong),
)
def test_a_part_of_another_history_is_refused_by_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    own, path = save(tmp_path, 0)
    _, other = save(tmp_path, 1, **wrong)
    with pytest.raises(
        CheckpointError, match=rf"{other.name}: it does not belong to {path.name}: {next(iter(wrong))} is"
    ):
        shared_load.checked_parts(path, own)


def test_a_part_under_another_ranks_name_is_refused(tmp_path: Path) -> None:
    own, path = save(tmp_path, 0)
    save(tmp_path, 1)
    third = path.with_name(path.name.replace("rank0", "other0"))
    with pytest.raises(CheckpointError, match="its name is not of rank 0"):
        shared_load.checked_parts(third, own)


def test_whatever_is_gone_or_changed_is_refused(tmp_path: Path) -> None:
    own, path = save(tmp_path, 0)
    _, other = save(tmp_path, 1)
    draw = random.Random(1)
    for file in (other, names.manifest_path(other)):
        content = file.read_bytes()
        for place in draw.sample(range(len(content)), 40):
            changed = bytearray(content)
            changed[place] ^= 1 << draw.randrange(8)
            file.write_bytes(changed)
            with pytest.raises(CheckpointError):
                shared_load.checked_parts(path, own)
        file.unlink()
        with pytest.raises(CheckpointError):
            shared_load.checked_parts(path, own)
        file.write_bytes(content)
    assert shared_load.checked_parts(path, own) == (path, other)


def test_all_ranks_find_one_prefix_that_is_free_for_all_of_them(tmp_path: Path) -> None:
    def free(run: int) -> str:
        return shared_names.free_prefix(tmp_path, "train", job="j", run=run, world_size=2)

    assert free(1) == "train"
    save(tmp_path, 1)
    assert free(1) == "train"
    # Rank 0 of run 1 has saved nothing, and run 2 does not go beside its rank 1.
    assert free(2) == "train_1"
    with pytest.raises(UsageError):
        shared_names.free_prefix(tmp_path, "", job="j", run=1, world_size=2)
