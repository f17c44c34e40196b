"""Folders that a framework wrote by itself: which files are in one, which of them a rank answers for, and when one is finished.

A rank that has a folder for itself answers for all of it, in `step_500.json`. In a folder that all ranks write together each answers, in
`step_500.rank1.json`, for the files whose names carry its number, rank 0 for all others; what says that the folder is finished is listed by
all of them, so that contributions of two histories never fit together.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from recovery.checkpoint import names
from recovery.frameworks import FRAMEWORKS

_KINDS = tuple(kind for framework in FRAMEWORKS for kind in framework.folders)
FINISHED = tuple(kind.last for kind in _KINDS)
"""Names of what is written last."""

_OF_RANK = re.compile("|".join(f"(?:{kind.of_rank})" for kind in _KINDS))
_RANK_IN_MANIFEST = re.compile(r"\.rank(?P<rank>0|[1-9][0-9]{0,8})\Z")


def is_finished(folder: Path) -> bool:
    """Has a framework written what it writes last?"""
    return any((folder / name).is_file() for name in FINISHED)


def way_to_weights(folder: Path) -> str:
    """What makes one file of weights of a folder, for people; empty: nothing is known."""
    ways = (kind.export for kind in _KINDS if kind.export and (folder / kind.last).is_file())
    return next(ways, "").format(folder=folder)


def files_in(folder: Path) -> tuple[str, ...]:
    """List what is in a folder, also in those within: paths from it, sorted.

    Raises:
        OSError: it cannot be listed, it or something in it is a link or no plain file, or there is nothing.
    """
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise OSError(errno.ENOTDIR, "it is not a folder")
    found = tuple(sorted(_files_below(folder, "")))
    if not found:
        raise OSError(errno.ENOENT, "there is no file in it")
    return found


def _files_below(folder: Path, begins: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = begins + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(folder / entry.name, name + "/")
            elif entry.is_file(follow_symlinks=False):
                yield name
            else:
                raise OSError(errno.EINVAL, f"{name} in it is not a plain file")


def answers_for(name: str, *, rank: int, world_size: int) -> bool:
    """Does a rank list this file (its path from the folder) of a folder that all ranks write together?

    A number from `world_size` on is no rank's, and rank 0's like any other name.
    """
    last = name.rpartition("/")[2]
    if last in FINISHED:
        return True
    match = _OF_RANK.fullmatch(last)
    number = int(next(filter(None, match.groups()))) if match else 0
    return rank == (number if number < world_size else 0)


def name_fault(name: str) -> str:
    """Why a folder of this name cannot be a checkpoint; empty: it can."""
    if not names.is_folder(name) or names.parse(name + names.SUFFIX) is not None:
        return "its name is one of a checkpoint file"
    if name.startswith("."):
        return "its name begins with a dot"
    return ""


def manifests_in(directory: Path, listed: tuple[str, ...]) -> Iterator[tuple[Path, Path, int | None]]:
    """Name what may be the manifest of a folder, among the names that are listed in a directory.

    Yields:
        The manifest, the folder that it would be of, and whose it is (None: its name does not say).
    """
    for name in listed:
        stem = name.removesuffix(names.MANIFEST_SUFFIX)
        if stem == name or name_fault(stem):
            continue
        match = _RANK_IN_MANIFEST.search(stem)
        if match is None or stem in listed:
            yield directory / name, directory / stem, None
        else:
            yield directory / name, directory / stem[: match.start()], int(match["rank"])


def manifests_of_ranks(folder: Path) -> tuple[Path, ...]:
    """Find the manifests of all ranks beside a folder.

    Raises:
        OSError: the directory cannot be listed.
    """
    begins = f"{folder.name}.rank"
    return tuple(
        sorted(
            entry
            for entry in folder.parent.iterdir()
            if entry.name.startswith(begins)
            and entry.name.endswith(names.MANIFEST_SUFFIX)
            and _RANK_IN_MANIFEST.search(entry.name.removesuffix(names.MANIFEST_SUFFIX))
        )
    )
