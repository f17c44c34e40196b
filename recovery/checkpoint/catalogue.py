"""Which checkpoints are there? A scan of the directory is the truth; nothing remembers it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names, verify
from recovery.checkpoint.files import reason_of, temporary_pattern
from recovery.checkpoint.manifest import Manifest
from recovery.core.ids import Generation, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointError, CheckpointManifestError

_Owner = tuple[str, int]
"""Job and run."""


def scan(
    directory: Path, prefix: str | None, *, job: str, run: int, rank: int | None
) -> tuple[HeldCheckpoint, ...]:
    """List the checkpoints of a run, as their manifests tell them. Content is not read; `verify.check` does that before a load.

    Args:
        directory: where; an absent one holds none.
        prefix: of their names; None: any.
        job: whose.
        run: of which run of the job.
        rank: saved by which rank; None: any.

    Returns:
        Newest step first; of one step the newest generation first. Left out: no readable manifest, another's, another size.

    Raises:
        CheckpointManifestError: the directory is there and cannot be listed. That is not the same as holding none.

    Cost: one small read and two opens per file of the prefix.
    """
    held = []
    for name in _listed(directory):
        parsed = names.parse(name)
        if parsed is None or prefix not in (None, parsed.prefix):
            continue
        path = directory.absolute() / name
        try:
            manifest = verify.check_size(path)
        except CheckpointError:
            continue
        if (manifest.job, manifest.run) == (job, run) and rank in (None, manifest.rank):
            held.append((manifest, path))
    held.sort(key=lambda one: (one[0].step, one[0].generation, one[0].incarnation), reverse=True)
    return tuple(held_of(manifest, path) for manifest, path in held)


def scan_all(places: Iterable[tuple[str, str]], *, job: str, run: int) -> tuple[HeldCheckpoint, ...]:
    """List what a node holds of a run, over all directories and prefixes that it ever saved to: one file a step, newest step first.

    Args:
        places: directories with the prefix saved under.
        job: whose.
        run: of which run of the job.

    Raises:
        CheckpointManifestError: as `scan`.
    """
    found: dict[int, HeldCheckpoint] = {}
    for path, prefix in sorted(set(places)):
        for held in scan(Path(path), prefix, job=job, run=run, rank=None):
            found.setdefault(held.step, held)
    return tuple(found[step] for step in sorted(found, reverse=True))


def foreign_prefix_in_use(directory: Path, prefix: str, *, job: str, run: int) -> bool:
    """True when files of this prefix are there that this run did not write, or that nobody can say who wrote.

    Raises:
        CheckpointManifestError: the directory cannot be listed.
    """
    owner = (job, run)
    return any(found != owner for found in _owners(directory, _listed(directory), prefix))


def free_prefix(directory: Path, prefix: str, *, job: str, run: int) -> str:
    """Find the name to save under so that no file of another run is written over: `prefix`, else `prefix_1`, `prefix_2`, ...

    MindSpore's rule. A run that has saved anything gets the same answer in every life, also when a manifest of its own was
    damaged meanwhile: under another prefix it would not find what it has saved.

    Raises:
        UsageError: the prefix cannot be one.
        CheckpointManifestError: the directory cannot be listed.
    """
    names.check_prefix(prefix)
    listed = _listed(directory)
    candidates = itertools.chain((prefix,), (f"{prefix}_{number}" for number in itertools.count(1)))
    for candidate in candidates:  # pragma: no branch - a directory is finite, so an unused number comes
        owners = set(_owners(directory, listed, candidate))
        if not owners or (job, run) in owners:
            break
    return candidate


def _listed(directory: Path) -> tuple[str, ...]:
    """Names in a directory, in one order on every file system."""
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except FileNotFoundError:
        return ()
    except OSError as error:
        reason = f"the directory cannot be listed ({reason_of(error)})"
        raise CheckpointManifestError(path=directory, reason=reason) from error


def _owners(directory: Path, listed: tuple[str, ...], prefix: str) -> Iterator[_Owner | None]:
    """Whose each checkpoint of a prefix is, manifests without their file too; None: nobody can say."""
    files = set(listed)
    files.update(
        name.removesuffix(names.MANIFEST_SUFFIX) + names.SUFFIX
        for name in listed
        if name.endswith(names.MANIFEST_SUFFIX)
    )
    for name in sorted(files):
        parsed = names.parse(name)
        if parsed is not None and parsed.prefix == prefix:
            yield _owner(directory, listed, name)


def _owner(directory: Path, listed: tuple[str, ...], name: str) -> _Owner | None:
    """Whom the manifest names; without one, whom the manifest names that its writer had ready when it died between the renames."""
    beside = names.manifest_path(directory / name).name
    begins, ends = temporary_pattern(beside)
    left_over = (other for other in listed if other.startswith(begins) and other.endswith(ends))
    for candidate in (beside,) if beside in listed else left_over:
        try:
            manifest = manifests.read_for(directory / candidate, file=name)
        except CheckpointManifestError:
            continue
        return manifest.job, manifest.run
    return None


def held_of(manifest: Manifest, path: Path) -> HeldCheckpoint:
    """What the scheduler hears of a checkpoint that is complete."""
    return HeldCheckpoint(
        run=RunId(manifest.run),
        generation=Generation(manifest.generation),
        step=manifest.step,
        epoch=manifest.epoch,
        step_in_epoch=manifest.step_in_epoch,
        path=str(path),
        digest=manifest.digest,
        file_bytes=manifest.file_bytes,
    )
