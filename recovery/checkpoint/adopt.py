"""What a framework wrote by itself, a file or a folder: made durable, digested, and given its manifest."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from recovery.checkpoint import framework_folders, names
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import FileRole, Manifest, ManifestFile, not_of
from recovery.checkpoint.durable_files import open_regular, sync_directory
from recovery.checkpoint.publish import as_write_error, check_path, check_place
from recovery.checkpoint.verify import digest_of
from recovery.errors import CheckpointManifestError, CheckpointWriteError


def adopt(
    path: Path,
    make_manifest: Callable[[tuple[ManifestFile, ...]], Manifest],
    still_owns_rank: Callable[[], bool],
) -> Manifest:
    """Sync a finished file, which nobody writes any more, and its directory, then write the manifest beside it: only then it is a checkpoint.

    `still_owns_rank` is asked right before the manifest gets its name, as by `publish.StagedCheckpoint.finish`.

    Raises:
        CheckpointWriteError: it could not be read or made durable, or is gone again. It stays as it is, without a manifest.

    Cost: reads the file once; four fsyncs.
    """
    with as_write_error(path):
        file = _settled(path, path.name)
        sync_directory(path.parent)
    return manifests.write(
        names.manifest_path(path),
        make_manifest((file,)),
        before_rename=lambda: check_place(path, still_owns_rank),
    )


def adopt_folder(
    folder: Path,
    make_manifest: Callable[[tuple[ManifestFile, ...]], Manifest],
    still_owns_rank: Callable[[], bool],
    *,
    rank: int,
    shared_by: int,
) -> Manifest:
    """As `adopt`, of a finished folder and all that is in it: nobody writes any more what this rank answers for.

    `shared_by` says how many ranks write the folder together; 1: it is this rank's own.

    Raises:
        CheckpointWriteError: it could not be read or made durable, changed meanwhile, or its manifest's name is another's. It stays as it is.

    Cost: reads this rank's files once; an fsync for each, and for each folder.
    """
    fault = framework_folders.name_fault(folder.name)
    if fault:
        raise CheckpointWriteError(path=folder, reason=fault)
    check_path(folder / "")
    with as_write_error(folder):
        before = _ours(folder, rank, shared_by)
        _check_carried(folder, make_manifest(_not_read_yet(folder, before)))
        files = tuple(_settled(folder / name, f"{folder.name}/{name}") for name in before)
        for within in sorted({parent for name in before for parent in (folder / name).parents}):
            if folder.parent in (within, *within.parents):
                sync_directory(within)
        if before != _ours(folder, rank, shared_by):
            raise CheckpointWriteError(path=folder, reason="it was still being written")
    beside = names.rank_manifest_path(folder, rank) if shared_by > 1 else names.manifest_path(folder)
    manifest = make_manifest(files)
    _check_free(beside, manifest)
    return manifests.write(beside, manifest, before_rename=lambda: check_place(folder, still_owns_rank))


def _ours(folder: Path, rank: int, shared_by: int) -> dict[str, tuple[int, ...]]:
    """What this rank answers for, and by what a change would be seen."""
    found: dict[str, tuple[int, ...]] = {}
    for name in framework_folders.files_in(folder):
        if shared_by == 1 or framework_folders.answers_for(name, rank=rank, world_size=shared_by):
            facts = (folder / name).lstat()
            found[name] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if not found:
        raise OSError(errno.ENOENT, f"no file in it is of rank {rank}")
    return found


def _not_read_yet(folder: Path, found: dict[str, tuple[int, ...]]) -> tuple[ManifestFile, ...]:
    return tuple(
        ManifestFile(
            name=f"{folder.name}/{name}", role=FileRole.FOREIGN, file_bytes=facts[1], digest="0" * 64
        )
        for name, facts in found.items()
    )


def _settled(path: Path, name: str) -> ManifestFile:
    """Make a file durable and say what is in it."""
    descriptor = open_regular(path)
    try:
        os.fsync(descriptor)
        digest, file_bytes = digest_of(descriptor), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    return ManifestFile(name=name, role=FileRole.FOREIGN, file_bytes=file_bytes, digest=digest)


def _check_carried(folder: Path, manifest: Manifest) -> None:
    """Refuse what could not be read back, before anything is read: names that no manifest carries, too many files."""
    beside = names.manifest_path(folder)
    try:
        content = manifests.seal(manifest)[1]
        if len(content) > manifests.BYTES_MAX:
            raise CheckpointWriteError(
                path=folder, reason=f"its {len(manifest.files)} files do not fit into one manifest"
            )
        manifests.parse(beside, content)
    except (UnicodeEncodeError, CheckpointManifestError) as error:
        raise CheckpointWriteError(
            path=folder, reason=f"a manifest cannot list its files ({error})"
        ) from error


def _check_free(beside: Path, manifest: Manifest) -> None:
    """Refuse to write over what is another's. This rank's own manifest of a step that is done again goes: it is of other bytes."""
    if not os.path.lexists(beside):
        return
    try:
        old = manifests.read_manifest(beside)
    except CheckpointManifestError as error:
        reason = f"what has its manifest's name is none ({error}); move it away"
        raise CheckpointWriteError(path=manifest.file, reason=reason) from error
    reason = not_of(old, job=manifest.job, run=manifest.run, rank=manifest.rank)
    if not reason and old.generation > manifest.generation:
        reason = f"generation {old.generation} has saved it, this process is still in generation {manifest.generation}"
    if reason:
        raise CheckpointWriteError(path=beside, reason=f"a folder of this name was saved before: {reason}")
