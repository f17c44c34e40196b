"""All ranks' contributions to one step, wherever in a directory they lie: what a job of another size reads."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from recovery.checkpoint import framework_folders, names, verify
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.errors import CheckpointError, CheckpointManifestError

_Key = tuple[str, int, int, int, int]
"""Job, run, step, generation, world size. The ranks save a step in one generation, so files of two do not belong together."""


class WholeStep(msgspec.Struct, frozen=True):
    """The files of every rank of a world, of one step and one history."""

    manifests: tuple[Manifest, ...]
    """By rank."""
    paths: tuple[Path, ...]
    """By rank: the first file of each."""

    @property
    def of(self) -> Manifest:
        """Rank 0's: job, run, step, epoch and world size are those of all."""
        return self.manifests[0]

    def check(self) -> None:
        """Digest all files, before any of them is used.

        Raises:
            CheckpointError: a file is not what its manifest says.

        Cost: reads everything once.
        """
        for path, manifest in zip(self.paths, self.manifests, strict=True):
            if verify.check(path).digest != manifest.digest:
                raise CheckpointManifestError(
                    path=path, reason="its manifest was replaced while it was looked at"
                )


def find(directory: Path, step: int | None = None) -> WholeStep:
    """Find a step of which every rank's contribution can be read from here: this one, or (None) of the newest run the newest that is whole.

    The directory holds the files, or a directory for each rank.

    Raises:
        CheckpointManifestError: there is none, with what is missing; or files of several jobs lie here.
    """
    found: dict[_Key, dict[int, tuple[Manifest, Path]]] = defaultdict(dict)
    for manifest, path in _readable(directory):
        key = manifest.job, manifest.run, manifest.step, manifest.generation, manifest.world_size
        found[key][manifest.rank] = manifest, path
    jobs = sorted({job for job, *_ in found})
    if len(jobs) > 1:
        raise _refused(
            directory,
            f"it holds checkpoints of several jobs ({', '.join(jobs)}); name a directory of one of them",
        )
    wanted = [key for key in found if step in (None, key[2])]
    for key in sorted(wanted, reverse=True):
        of_ranks = found[key]
        if len(of_ranks) == key[4]:
            ordered = [of_ranks[rank] for rank in sorted(of_ranks)]
            return WholeStep(tuple(manifest for manifest, _ in ordered), tuple(path for _, path in ordered))
    if not wanted:
        folder = _folder_of_framework(directory.absolute(), step)
        if folder is not None:
            raise _refused(directory, _written_by_framework(directory.absolute(), folder))
        raise _refused(directory, "it holds no checkpoint" + (f" of step {step}" if step is not None else ""))
    newest = max(wanted)
    raise _refused(directory, f"no step is whole: {_missing(newest, found[newest])}")


def of_file(path: Path, step: int | None = None) -> WholeStep:
    """Take one rank's file for the whole step, which it is where each rank saves everything.

    Raises:
        CheckpointManifestError: it holds one rank's part only, or is of another step.
        CheckpointError: it is no complete checkpoint.
    """
    manifest = verify.check_size(path)
    if manifest.layout is not Layout.RANK:
        raise _refused(
            path,
            f"it holds a part of the state ({manifest.layout.value}); name the directory of all ranks' checkpoints",
        )
    if step not in (None, manifest.step):
        raise _refused(path, f"it is of step {manifest.step}, not of step {step}")
    return WholeStep((manifest,), (path.absolute(),))


def _readable(directory: Path) -> Iterable[tuple[Manifest, Path]]:
    """Every checkpoint that has a manifest and files of the right size, in this directory and in those right below it."""
    if not directory.is_dir():
        raise _refused(directory, "it is no directory that can be read")
    for path in sorted([*directory.iterdir(), *directory.glob("*/*")]):
        if names.parse(path.name) is None or not path.is_file():
            continue
        try:
            yield verify.check_size(path), path.absolute()
        except CheckpointError:
            # What is missing by it is said where the step is not whole.
            continue


def _folder_of_framework(directory: Path, step: int | None) -> Path | None:
    """Find what a framework wrote by itself: this directory or one right below it, of the wanted step or else the newest."""
    steps: dict[Path, int] = {}
    # What is in the directory or beside it may be another user's.
    for folder in (directory, *directory.iterdir()):
        with contextlib.suppress(OSError):
            if framework_folders.is_finished(folder):
                steps[folder] = 0
    for place in (directory.parent, directory):
        with contextlib.suppress(OSError):
            for beside, folder, _ in framework_folders.manifests_in(
                place, tuple(entry.name for entry in place.iterdir())
            ):
                if directory in (place, folder) and folder.is_dir():
                    with contextlib.suppress(CheckpointManifestError):
                        steps[folder] = manifests.read_manifest(beside).step
    wanted = [folder for folder in steps if steps[folder] == step] or steps
    return max(wanted, key=lambda folder: (steps[folder], folder.name), default=None)


def _written_by_framework(directory: Path, folder: Path) -> str:
    if folder == directory:
        reason = "it is a folder that a framework wrote, so that framework loads and exports it"
    else:
        reason = f"it holds folders that a framework wrote, such as {folder.name}, so that framework loads and exports them"
    way = framework_folders.way_to_weights(folder)
    return f"{reason} ({way})" if way else reason


def _missing(key: _Key, of_ranks: Collection[int]) -> str:
    _, _, step, _, world_size = key
    absent = [str(rank) for rank in range(world_size) if rank not in of_ranks]
    return f"of step {step}, saved by {world_size} ranks, the files of rank {', '.join(absent)} cannot be read from here"


def _refused(directory: Path, reason: str) -> CheckpointManifestError:
    return CheckpointManifestError(path=directory, reason=reason)
