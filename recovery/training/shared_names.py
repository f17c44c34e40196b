"""Names in the one directory of all ranks: `<prefix>.rank<r>-<epoch>_<step>.ckpt` has a part of the state for all, `.side` beside it the rank's own."""

from __future__ import annotations

import itertools
from pathlib import Path

from recovery.checkpoint import catalogue, names

SIDE_SUFFIX = ".side"


def rank_prefix(prefix: str, rank: int) -> str:
    """What the names of one rank's files begin with: `train.rank3`."""
    return f"{prefix}.rank{rank}"


def side_path(part: Path) -> Path:
    """Name what only the rank has, beside its part: `train.rank3-2_400.side`."""
    return part.with_name(part.stem + SIDE_SUFFIX)


def of_rank(part: Path, rank: int, *, own_rank: int) -> Path | None:
    """Name another rank's part of the same step; None: this is no name of rank `own_rank`."""
    parsed, own = names.parse(part.name), rank_prefix("", own_rank)
    if parsed is None or not parsed.prefix.endswith(own):
        return None
    prefix = rank_prefix(parsed.prefix.removesuffix(own), rank)
    return part.with_name(names.file_name(prefix, epoch=parsed.epoch, step_in_epoch=parsed.step_in_epoch))


def free_prefix(directory: Path, prefix: str, *, job: str, run: int, world_size: int) -> str:
    """Find one prefix for all ranks under which no file of another run lies, whichever rank's: `prefix`, else `prefix_1`, ...

    Every rank finds the same one, since this run writes nowhere but there.

    Raises:
        UsageError: the prefix cannot be one.
        CheckpointManifestError: the directory cannot be listed.
    """
    candidates = itertools.chain((prefix,), (f"{prefix}_{number}" for number in itertools.count(1)))
    for candidate in candidates:  # pragma: no branch - a directory is finite, so an unused number comes
        wanted = [rank_prefix(candidate, rank) for rank in range(world_size)]
        if all(catalogue.free_prefix(directory, name, job=job, run=run) == name for name in wanted):
            break
    return candidate
