"""The facts beside a checkpoint file. Sealed with a digest of its own, since what it says decides where a job goes back to.

The file is JSON: `{"manifest": {...}, "manifest_sha256": "..."}`. The digest is over the inner object's bytes as they stand,
so nobody needs to agree on one way to write JSON, and every changed bit is seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

import msgspec

from recovery.checkpoint import names
from recovery.checkpoint.files import Staged, open_regular, opened_directory, reason_of
from recovery.core.converter import UNREADABLE
from recovery.core.message_fields import Count, ShortText
from recovery.errors import CheckpointManifestError, CheckpointWriteError

FORMAT = 1
"""Rises when a reader of today could misread a file of tomorrow."""

BYTES_MAX = 1 << 20
"""A manifest has about 1 KiB; a thousand times that is no manifest, and is not read into memory."""

_Shape = TypeVar("_Shape", bound=msgspec.Struct)

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's checkpoint file: whose it is, where in training it stands, and what its bytes must be."""

    format: Positive
    job: ShortText
    run: Count
    rank: Count
    world_size: Positive
    incarnation: Count
    generation: Count
    step: Count
    """Global step, 1-based: this many steps are in it."""
    epoch: Count
    step_in_epoch: Count
    file: ShortText
    """Name of the checkpoint file beside this one; never a path."""
    digest: Digest
    """SHA-256 of that file, hex."""
    file_bytes: Count
    versions: dict[ShortText, ShortText]
    """Frameworks that wrote it."""
    integrated: bool
    """True: the rank's file holds the full state. False: its shard."""


def not_of(manifest: Manifest, *, job: str, run: int, rank: int | None) -> str:
    """Why a checkpoint is another's; empty when it is of this job, run and rank (None: of any)."""
    if (manifest.job, manifest.run) != (job, run):
        return f"it is of job {manifest.job!r} run {manifest.run}, not of job {job!r} run {run}"
    if rank not in (None, manifest.rank):
        return f"it is of rank {manifest.rank}, not of rank {rank}"
    return ""


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    manifest: msgspec.Raw
    manifest_sha256: str


class _FormatOnly(msgspec.Struct, frozen=True):
    format: Positive


# Made here: the save thread and the watch thread read their first manifest at the same moment (see core/converter.py).
_sealed = msgspec.json.Decoder(_Sealed)
_format_only = msgspec.json.Decoder(_FormatOnly)
_manifest = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Give the manifest its bytes on disk, sealed."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    seal = hashlib.sha256(body).hexdigest().encode()
    return b'{"manifest": ' + body + b',\n"manifest_sha256": "' + seal + b'"}\n'


def fill(manifest: Manifest, stream: BinaryIO) -> None:
    """Write the sealed bytes to `stream`."""
    stream.write(encode(manifest))


def write(path: Path, manifest: Manifest, *, before_rename: Callable[[], None] | None = None) -> None:
    """Make a manifest durable under `path`, whose checkpoint file is there already.

    Args:
        path: of the manifest.
        manifest: its content.
        before_rename: called when only the name is left to be given; what it raises passes through, and nothing has changed.

    Raises:
        CheckpointWriteError: it could not be written; what was under `path` before is still there.
    """
    assert path.name == names.manifest_path(Path(manifest.file)).name, "a manifest stands beside its file"
    try:
        with opened_directory(path.parent) as directory, Staged(directory, path.name) as staged:
            staged.write(lambda stream: fill(manifest, stream))
            staged.settle()
            if before_rename is not None:
                before_rename()
            staged.rename()
    except OSError as error:
        raise CheckpointWriteError(path=path, reason=reason_of(error)) from error


def read(path: Path) -> Manifest:
    """Read and check the manifest under `path`.

    Raises:
        CheckpointManifestError: it is absent, unreadable, too big, of a newer format, changed, or not of the file beside it.
    """
    return read_for(path, file=path.name.removesuffix(names.MANIFEST_SUFFIX) + names.SUFFIX)


def read_for(path: Path, *, file: str) -> Manifest:
    """Read a manifest that must be of `file`, wherever it stands itself (a temporary name, say).

    Raises:
        CheckpointManifestError: as `read`.
    """
    body = _unsealed(path, _content(path))
    found = _decoded(path, body, _format_only).format
    if found > FORMAT:
        raise _refused(path, f"a newer release wrote it (format {found}, this release reads up to {FORMAT})")
    manifest = _decoded(path, body, _manifest)
    if "/" in manifest.file:
        raise _refused(path, f"it names a path ({manifest.file!r}) where a file name belongs")
    if manifest.file != file:
        raise _refused(path, f"it is of another file ({manifest.file!r})")
    if manifest.rank >= manifest.world_size:
        raise _refused(path, f"rank {manifest.rank} is outside a world of {manifest.world_size}")
    return manifest


def _content(path: Path) -> bytes:
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            content = stream.read(BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise _refused(path, "it is missing, so the file beside it is no checkpoint") from error
    except OSError as error:
        raise _refused(path, f"it cannot be read ({reason_of(error)})") from error
    if len(content) > BYTES_MAX:
        raise _refused(path, f"it is larger than {BYTES_MAX} bytes")
    return content


def _unsealed(path: Path, content: bytes) -> bytes:
    sealed = _decoded(path, content, _sealed)
    body = bytes(sealed.manifest)
    if hashlib.sha256(body).hexdigest() != sealed.manifest_sha256:
        raise _refused(path, "its own digest does not fit: it was changed after it was written")
    return body


def _decoded(path: Path, content: bytes, decoder: msgspec.json.Decoder[_Shape]) -> _Shape:
    try:
        return decoder.decode(content)
    except UNREADABLE as error:
        raise _refused(path, f"it is no manifest ({error})") from error


def _refused(path: Path, reason: str) -> CheckpointManifestError:
    return CheckpointManifestError(path=path, reason=reason)
