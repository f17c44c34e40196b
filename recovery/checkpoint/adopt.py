"""A checkpoint file that a framework wrote by itself: made durable, digested, and given its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names
from recovery.checkpoint.contribution import FileRole, Manifest, ManifestFile
from recovery.checkpoint.files import open_regular, opened_directory, reason_of
from recovery.checkpoint.publish import check_place
from recovery.checkpoint.verify import digest_of
from recovery.errors import CheckpointWriteError


def adopt(
    path: Path,
    make_manifest: Callable[[tuple[ManifestFile, ...]], Manifest],
    place_is_ours: Callable[[], bool],
) -> Manifest:
    """Sync a finished file and its directory, then write the manifest beside it: only then it is a checkpoint.

    Args:
        path: of a file under its final name, which nobody writes any more.
        make_manifest: given the file with its size and SHA-256, makes its manifest.
        place_is_ours: asked right before the manifest gets its name, as by `publish.Stage.finish`.

    Raises:
        CheckpointWriteError: it could not be read or made durable, or is gone again. It stays as it is, without a manifest.

    Cost: reads the file once; four fsyncs.
    """
    try:
        descriptor = open_regular(path)
        try:
            os.fsync(descriptor)
            digest, file_bytes = digest_of(descriptor), os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        with opened_directory(path.parent) as directory:
            os.fsync(directory)
    except OSError as error:
        raise CheckpointWriteError(path=path, reason=reason_of(error)) from error
    file = ManifestFile(name=path.name, role=FileRole.FOREIGN, file_bytes=file_bytes, digest=digest)
    return manifests.write(
        names.manifest_path(path),
        make_manifest((file,)),
        before_rename=lambda: check_place(path, place_is_ours),
    )
