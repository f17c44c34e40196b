"""Before a folder that all ranks wrote together is offered: do the other ranks' parts of it belong to this rank's, and are they whole?"""

from __future__ import annotations

import logging
from pathlib import Path

from recovery.checkpoint import framework_folders, names, verify
from recovery.checkpoint.contribution import Manifest
from recovery.checkpoint.durable_files import reason_of
from recovery.errors import CheckpointManifestError

_logger = logging.getLogger("recovery.training")


def check_others(folder: Path, own: Manifest) -> None:
    """Compare what the other ranks answer for with their manifests, and those with a rank's own.

    A folder that a rank has for itself has no others. What nobody answers for is named in the log: it was not there when it was saved.

    Args:
        folder: of which this rank's files are checked already.
        own: its manifest.

    Raises:
        CheckpointError: a manifest or file is absent, not what it was, or of another history.

    Cost: reads the files of the other ranks once.
    """
    known = {file.name for file in own.files}
    if names.manifest_beside(folder, own.rank) != names.manifest_path(folder):
        for rank in range(own.world_size):
            if rank != own.rank:
                known.update(file.name for file in _checked(folder, rank, own).files)
    _name_unknown(folder, known)


def _checked(folder: Path, rank: int, own: Manifest) -> Manifest:
    beside = names.rank_manifest_path(folder, rank)
    if not beside.exists():
        raise CheckpointManifestError(
            path=beside, reason=f"it is missing, so nobody answers for what rank {rank} wrote"
        )
    manifest = verify.check(folder, rank=rank)
    for field, found, wanted in (
        ("rank", manifest.rank, rank),
        ("job", manifest.job, own.job),
        ("run", manifest.run, own.run),
        ("step", manifest.step, own.step),
        ("generation", manifest.generation, own.generation),
        ("world_size", manifest.world_size, own.world_size),
    ):
        if found != wanted:
            raise CheckpointManifestError(
                path=beside,
                reason=f"it does not belong to rank {own.rank}'s: {field} is {found!r}, not {wanted!r}",
            )
    return manifest


def _name_unknown(folder: Path, known: set[str]) -> None:
    try:
        unknown = [
            name for name in framework_folders.files_in(folder) if f"{folder.name}/{name}" not in known
        ]
    except OSError as error:
        raise CheckpointManifestError(
            path=folder, reason=f"it cannot be listed ({reason_of(error)})"
        ) from error
    if unknown:
        _logger.warning(
            "event=folder_files_not_verified path=%s files=%r reason='they were not there when it was saved'",
            folder,
            unknown[:10],
        )
