"""Steps that ranks have saved, and a copy that one of them holds for another: what `recovery verify` looks at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from recovery.checkpoint import verify
from recovery.checkpoint.contribution import FileRole, Layout, Manifest, ManifestFile
from recovery.checkpoint.fetched import Receipt, sealed_bytes
from recovery.checkpoint.publish import Content, publish
from recovery.core.ids import Rank, RunId
from recovery.worker.held_copies import Copies

RUN = RunId(1)


def of_step(
    number: int, files: tuple[ManifestFile, ...], *, rank: int, layout: Layout = Layout.RANK
) -> Manifest:
    """The manifest of one of two ranks."""
    return Manifest(
        job="job",
        run=RUN,
        rank=rank,
        world_size=2,
        incarnation=1,
        generation=1,
        step=number,
        epoch=number,
        step_in_epoch=1,
        files=files,
        layout=layout,
        versions={},
        integrated=layout is Layout.RANK,
    )


def publish_files(directory: Path, number: int, rank: int) -> Path:
    """Save a rank's checkpoint of two files."""
    stem = f"train_rank_{rank}-{number}_1"

    contents = [
        Content(f"{stem}.ckpt", _writes(b"the state" * number)),
        Content(f"{stem}.side", _writes(b"beside it" * number), FileRole.SIDE),
    ]
    return publish(directory, contents, lambda files: of_step(number, files, rank=rank))[1]


def _writes(content: bytes) -> Callable[[BinaryIO], None]:
    def write(stream: BinaryIO) -> None:
        stream.write(content)

    return write


def copies_of_rank_1(place: Path) -> Path:
    """Where worker_0 keeps its copies of rank 1."""
    return Copies(place, "worker_0").directory("job", RUN, Rank(1))


def copy_step(place: Path, number: int) -> Path:
    """Save a step as rank 1 below `place`, and make worker_0's copy of it. Where rank 1's own file lies."""
    path = publish_files(place / "other", number, rank=1)
    found = verify.check(path)
    wanted = verify.Wanted(job="job", run=RUN, rank=1, world_size=2, step=number, digest=found.digest)
    with Receipt(copies_of_rank_1(place), wanted) as receipt:
        receipt.accept(sealed_bytes(path))
        for position, file in enumerate(found.paths(path.parent)):
            receipt.begin(position)
            receipt.take(file.read_bytes())
            receipt.end(position)
        receipt.publish()
    return path
