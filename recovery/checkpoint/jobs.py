"""Of which jobs are the checkpoints of a directory? Manifests alone say it, where no store is left that knows."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from pathlib import Path

import msgspec

from recovery.checkpoint import catalogue, names
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import Manifest
from recovery.errors import CheckpointError


class FoundJob(msgspec.Struct, frozen=True):
    """What a job has left."""

    job: str
    count: int
    """Checkpoints, counted by manifest: of each rank one a step."""
    newest_step: int


def manifests_in(directory: Path) -> Iterator[Manifest]:
    """Every manifest of a directory, in the order of their names. The code that plans with a damaged one says so."""
    for path in sorted(directory.glob(f"*{names.MANIFEST_SUFFIX}")):
        try:
            yield manifests.read_manifest(path)
        except CheckpointError:
            continue


def manifests_below(directory: Path) -> Iterator[tuple[Path, Manifest]]:
    """Every manifest of a directory and all below it, with the directory that it stands in.

    Raises:
        OSError: a directory cannot be listed: what is there must not count as nothing.
    """
    for place, below, _ in os.walk(directory, onerror=_raise):
        below.sort()
        for manifest in manifests_in(Path(place)):
            yield Path(place), manifest


def _raise(error: OSError) -> None:
    raise error


def prefix_of(manifest: Manifest) -> str | None:
    """Under which prefix a catalogue finds it; None: its name is none."""
    if manifest.is_folder:
        return catalogue.FOLDERS
    parsed = names.parse(manifest.file)
    return parsed.prefix if parsed is not None else None


def unknown(directory: Path, prefix: str, *, job: str, known: Container[str]) -> tuple[FoundJob, ...]:
    """Find other jobs that have saved under a prefix, in any layout, or under what `free_prefix` makes of it; `known` ones may lie there.

    Returns:
        The one with the newest step first; none where the directory is absent or the job itself has saved there: it has begun beside them.

    Cost: one small read per manifest.
    """
    of_prefix = re.compile(rf"{re.escape(prefix)}(_[0-9]+)?(\.rank[0-9]+)?")
    steps: dict[str, list[int]] = {}
    for manifest in manifests_in(directory):
        found_under = prefix_of(manifest)
        if found_under is not None and of_prefix.fullmatch(found_under):
            steps.setdefault(manifest.job, []).append(manifest.step)
    if job in steps:
        return ()
    found = [FoundJob(name, len(saved), max(saved)) for name, saved in steps.items() if name not in known]
    return tuple(sorted(found, key=lambda other: (-other.newest_step, other.job)))
