"""Which checkpoints are there? A scan of the directory is the truth; nothing remembers it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from recovery.checkpoint import framework_folders, names, verify
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import Layout, Manifest, not_of
from recovery.checkpoint.durable_files import reason_of, temporary_pattern
from recovery.core.ids import Generation, RunId
from recovery.core.messages import HeldCheckpoint, Skipped
from recovery.core.tiers import tier_of
from recovery.errors import CheckpointError, CheckpointManifestError

_Owner = tuple[str, int]
"""Job and run."""

_TEXT_CHARS_MAX = 1_024
"""As `message_fields.ShortText`."""


FOLDERS = ""
"""In place of a prefix: not files, but the folders of a directory."""


class Listing(msgspec.Struct, frozen=True):
    """What lies in a directory."""

    held: tuple[HeldCheckpoint, ...]
    """Newest step first; of one step the newest generation first."""
    passed_over: tuple[Skipped, ...]
    """What has a checkpoint's name and is none that may be used, newest step first; those whose step nobody can say behind."""
    remains: tuple[HeldCheckpoint, ...] = ()
    """Of those what a sealed manifest of this job, run and rank describes, sorted as `held`: its files are not all there as they were
    written. No plan goes there, and what is left goes when the step would."""


def list_directory(directory: Path, prefix: str | None, *, job: str, run: int, rank: int | None) -> Listing:
    """List the checkpoints of a run, as their manifests describe them. Content is not read; `verify.check` does that before a load.

    Args:
        directory: where; an absent one holds none.
        prefix: of the files' names; `FOLDERS`: folders that a framework wrote, whatever their names; None: any file and folder.
        job: whose.
        run: of which run of the job.
        rank: saved by which rank; None: any.

    Returns:
        What may be used, and what was passed over and why: no readable manifest, another's, another size, a file that is gone.

    Raises:
        CheckpointManifestError: the directory is there and cannot be listed. That is not the same as holding none.

    Cost: one small read and two opens per file of the prefix.
    """
    listed = _listed(directory)
    held: list[tuple[Manifest, Path]] = []
    remains: list[tuple[Manifest, Path]] = []
    passed_over: list[Skipped] = []
    for name in sorted({*listed, *_files_of_orphaned_manifests(listed)}):
        parsed = names.parse(name)
        if parsed is None or prefix not in (None, parsed.prefix):
            continue
        path = directory.absolute() / name
        try:
            manifest = verify.check_size(path)
        except CheckpointError as error:
            known = _manifest_of(path)
            is_ours = known is not None and not not_of(known, job=job, run=run, rank=rank)
            if known is not None and is_ours:
                remains.append((known, path))
            if name in listed or is_ours:
                passed_over.append(_passed_over(path, str(error), known))
            continue
        reason = not_of(manifest, job=job, run=run, rank=rank)
        if reason:
            passed_over.append(_passed_over(path, reason, manifest))
        else:
            held.append((manifest, path))
    if prefix in (None, FOLDERS):
        _look_at_folders(directory.absolute(), listed, (job, run, rank), held, remains, passed_over)
    passed_over.sort(key=lambda skipped: (-skipped.step, skipped.path))
    return Listing(_newest_first(held), tuple(passed_over), _newest_first(remains))


def _newest_first(found: list[tuple[Manifest, Path]]) -> tuple[HeldCheckpoint, ...]:
    found.sort(key=lambda pair: (pair[0].step, pair[0].generation, pair[0].incarnation), reverse=True)
    return tuple(held_of(manifest, path) for manifest, path in found)


def _look_at_folders(
    directory: Path,
    listed: tuple[str, ...],
    wanted: tuple[str, int, int | None],
    held: list[tuple[Manifest, Path]],
    remains: list[tuple[Manifest, Path]],
    passed_over: list[Skipped],
) -> None:
    """As `list_directory`. A folder without a manifest is the framework's alone, and a JSON file without a folder may be anything."""
    job, run, rank = wanted
    for beside, folder, whose in framework_folders.manifests_in(directory, listed):
        if None not in (rank, whose) and whose != rank:
            continue
        try:
            manifest = manifests.read_manifest(beside)
        except CheckpointManifestError as error:
            if folder.is_dir():
                passed_over.append(_passed_over(folder, str(error), None))
            continue
        if not manifest.is_folder or names.manifest_beside(folder, manifest.rank) != beside:
            continue
        reason = not_of(manifest, job=job, run=run, rank=rank)
        try:
            if not reason:
                held.append((verify.check_size(folder, rank=manifest.rank), folder))
        except CheckpointError as error:
            reason = str(error)
            remains.append((manifest, folder))
        if reason:
            passed_over.append(_passed_over(folder, reason, manifest))


def scan(
    directory: Path, prefix: str | None, *, job: str, run: int, rank: int | None
) -> tuple[HeldCheckpoint, ...]:
    """List what may be used: `list_directory`, without what it passes over."""
    return list_directory(directory, prefix, job=job, run=run, rank=rank).held


def list_all(places: Iterable[tuple[str, str | None]], *, job: str, run: int, rank: int | None) -> Listing:
    """List what a node holds of a run, of one rank or (None) of any, over all directories and prefixes that it ever saved to: one file a step.

    A directory that cannot be listed is passed over as a whole, with its reason. A place without a prefix (None) counts with any.
    """
    found: dict[int, HeldCheckpoint] = {}
    passed_over: dict[str, Skipped] = {}
    for path, prefix in sorted(set(places), key=lambda place: (place[0], place[1] or "")):
        try:
            there = list_directory(Path(path), prefix, job=job, run=run, rank=rank)
        except CheckpointManifestError as error:
            passed_over[path] = _passed_over(Path(path), str(error), None)
            continue
        passed_over.update((skipped.path, skipped) for skipped in there.passed_over)
        for held in there.held:
            known = found.get(held.step)
            if known is None or _worth(known) < _worth(held):
                found[held.step] = held
    return Listing(
        tuple(found[step] for step in sorted(found, reverse=True)),
        tuple(sorted(passed_over.values(), key=lambda skipped: (-skipped.step, skipped.path))),
    )


def _worth(held: HeldCheckpoint) -> tuple[int, bool]:
    """Of one step the newest history counts, and of that the file that outlasts the host."""
    return held.generation, tier_of(held.path).is_durable


def _files_of_orphaned_manifests(listed: tuple[str, ...]) -> list[str]:
    """Names of the files that a manifest is there of, and that are not."""
    stems = {
        name.removesuffix(names.MANIFEST_SUFFIX) for name in listed if name.endswith(names.MANIFEST_SUFFIX)
    }
    stems -= {Path(name).stem for name in listed if names.parse(name) is not None}
    return [stem + suffix for stem in stems for suffix in names.SUFFIXES]


def _manifest_of(path: Path) -> Manifest | None:
    """What the manifest beside a file says, whatever the file is; None: nothing that can be trusted."""
    try:
        return manifests.read_for(names.manifest_path(path), file=path.name)
    except CheckpointManifestError:
        return None


def _passed_over(path: Path, reason: str, manifest: Manifest | None) -> Skipped:
    """An event must be able to name any path."""
    text, reason = (word.encode(errors="backslashreplace").decode() for word in (str(path), reason))
    step = manifest.step if manifest is not None else 0
    return Skipped(path=text[-_TEXT_CHARS_MAX:], reason=reason[:_TEXT_CHARS_MAX], step=step)


def free_prefix(directory: Path, prefix: str, *, job: str, run: int) -> str:
    """Find the name to save under so that no file of another run is written over: `prefix`, else `prefix_1`, `prefix_2`, ...

    MindSpore's rule. A run that has saved anything gets the same answer in every incarnation, also when a manifest of its own was
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
    """What is reported to the scheduler of a complete checkpoint."""
    return HeldCheckpoint(
        run=RunId(manifest.run),
        generation=Generation(manifest.generation),
        step=manifest.step,
        epoch=manifest.epoch,
        step_in_epoch=manifest.step_in_epoch,
        path=f"{path}/" if manifest.is_folder else str(path),
        digest=manifest.digest,
        file_bytes=manifest.file_bytes,
        # What is saved once for all is compared where it is saved (training/shared_layout.py).
        replica="" if manifest.layout is Layout.SHARED else manifest.replicated,
    )
