"""The facts beside the files of a checkpoint. Sealed with a digest of its own, since what it says decides where a job goes back to.

The file is JSON: `{"manifest": {...}, "manifest_sha256": "..."}`. The digest is over the inner object's bytes as they stand,
so nobody needs to agree on one way to write JSON, and every changed bit is seen.

Format 3 says where training goes on. Format 2 did not; format 1 named one file where these list any number. All are read into the same `Manifest`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec

from recovery.checkpoint import names
from recovery.checkpoint.contribution import (
    Digest,
    FileRole,
    Layout,
    Manifest,
    ManifestFile,
    Positive,
    name_fault,
)
from recovery.checkpoint.durable_files import TemporaryFile, open_regular, opened_directory, reason_of
from recovery.checkpoint.position import Position
from recovery.core.converter import UNREADABLE
from recovery.core.message_fields import Count, ShortText
from recovery.errors import CheckpointManifestError, CheckpointWriteError
from recovery.file_systems import words_of

FORMAT = 3
"""Rises when a reader of today could misread a file of tomorrow."""

BYTES_MAX = 1 << 20
"""A manifest has about 1 KiB; a thousand times that is no manifest, and is not read into memory."""

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class _Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all formats say, in the order in which it is written."""

    format: Positive
    job: ShortText
    run: Count
    rank: Count
    world_size: Positive
    incarnation: Count
    generation: Count
    step: Count
    epoch: Count
    step_in_epoch: Count


class _Format1(_Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: ShortText
    digest: Digest
    file_bytes: Count
    versions: dict[ShortText, ShortText]
    integrated: bool


class _Format3(_Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of format 2 as well, which has no position."""

    layout: Layout
    files: Annotated[tuple[ManifestFile, ...], msgspec.Meta(min_length=1)]
    replicated: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    versions: dict[ShortText, ShortText]
    integrated: bool
    position: Position | None = None


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    manifest: msgspec.Raw
    manifest_sha256: str


class _FormatOnly(msgspec.Struct, frozen=True):
    format: Positive


# Made here: the save thread and the watch thread read their first manifest at the same moment (see core/converter.py).
_sealed = msgspec.json.Decoder(_Sealed)
_format_only = msgspec.json.Decoder(_FormatOnly)
_format_1 = msgspec.json.Decoder(_Format1)
_format_3 = msgspec.json.Decoder(_Format3)
_OF_PLACE = tuple(field for field in _Place.__struct_fields__ if field != "format")


def seal(manifest: Manifest) -> tuple[Manifest, bytes]:
    """Give the manifest its bytes on disk, and with them its digest."""
    body = msgspec.json.format(
        msgspec.json.encode(
            _Format3(
                format=FORMAT,
                layout=manifest.layout,
                files=manifest.files,
                replicated=manifest.replicated,
                versions=manifest.versions,
                integrated=manifest.integrated,
                position=manifest.position,
                **_place_of(manifest),
            )
        ),
        indent=2,
    )
    digest = hashlib.sha256(body).hexdigest()
    content = b'{"manifest": ' + body + b',\n"manifest_sha256": "' + digest.encode() + b'"}\n'
    return msgspec.structs.replace(manifest, digest=digest), content


def write(path: Path, manifest: Manifest, *, before_rename: Callable[[], None] | None = None) -> Manifest:
    """Make a manifest durable under `path`, whose checkpoint files are there already; gives it with its digest.

    `before_rename` is called when only the name is left to be given; what it raises passes through, and nothing has changed.

    Raises:
        CheckpointWriteError: it could not be written; what was under `path` before is still there.
    """
    assert _may_be_called(path.name, manifest), "a manifest stands beside its file"
    sealed, content = seal(manifest)
    try:
        with opened_directory(path.parent) as directory, TemporaryFile(directory, path.name) as staged:
            staged.write(lambda stream: fill(content, stream))
            staged.settle()
            if before_rename is not None:
                before_rename()
            staged.rename()
    except OSError as error:
        raise CheckpointWriteError(path=path, reason=words_of(error, path)) from error
    return sealed


def fill(content: bytes, stream: BinaryIO) -> None:
    """Write sealed bytes to `stream`."""
    stream.write(content)


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest under `path`, whatever the file beside it is called.

    Raises:
        CheckpointManifestError: it is absent, unreadable, too big, of a newer format, changed, or not of a file beside it.
    """
    manifest = _read(path)
    if not _may_be_called(path.name, manifest):
        raise _refused(path, f"it is of another file ({manifest.file!r})")
    return manifest


def _may_be_called(name: str, manifest: Manifest) -> bool:
    file = Path(manifest.file)
    of_rank = manifest.is_folder and name == names.rank_manifest_path(file, manifest.rank).name
    return of_rank or name == names.manifest_path(file).name


def read_for(path: Path, *, file: str) -> Manifest:
    """Read a manifest that must be of `file`, wherever it stands itself (a temporary name, say).

    Raises:
        CheckpointManifestError: as `read_manifest`.
    """
    manifest = _read(path)
    if manifest.file != file:
        raise _refused(path, f"it is of another file ({manifest.file!r})")
    return manifest


def _read(path: Path) -> Manifest:
    return parse(path, _content(path))


def parse(path: Path, content: bytes) -> Manifest:
    """Check the bytes of a manifest, at most BYTES_MAX, wherever they come from; where they stand, or will, is for the error.

    Raises:
        CheckpointManifestError: as `read_manifest`, but for what the file beside it is called.
    """
    body, digest = _unsealed(path, content)
    found = _decoded(path, body, _format_only).format
    if found > FORMAT:
        raise _refused(path, f"a newer release wrote it (format {found}, this release reads up to {FORMAT})")
    if found == 1:
        manifest = _from_format_1(_decoded(path, body, _format_1))
    else:
        manifest = _from_format_3(_decoded(path, body, _format_3), digest)
    fault = name_fault(manifest.files)
    if fault:
        raise _refused(path, fault)
    if manifest.rank >= manifest.world_size:
        raise _refused(path, f"rank {manifest.rank} is outside a world of {manifest.world_size}")
    return manifest


def _from_format_1(read: _Format1) -> Manifest:
    """One file, whose digest named the checkpoint: stores and plans of those releases know it by that."""
    role = FileRole.STATE if read.integrated else FileRole.SHARD
    file = ManifestFile(name=read.file, role=role, file_bytes=read.file_bytes, digest=read.digest)
    return Manifest(
        files=(file,),
        layout=Layout.RANK if read.integrated else Layout.SHARDED,
        versions=read.versions,
        integrated=read.integrated,
        digest=read.digest,
        **_place_of(read),
    )


def _from_format_3(read: _Format3, digest: str) -> Manifest:
    return Manifest(
        files=read.files,
        layout=read.layout,
        replicated=read.replicated,
        versions=read.versions,
        integrated=read.integrated,
        position=read.position,
        digest=digest,
        **_place_of(read),
    )


def _place_of(shape: Manifest | _Place) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in _OF_PLACE}


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


def _unsealed(path: Path, content: bytes) -> tuple[bytes, str]:
    """What is sealed, and its digest."""
    sealed = _decoded(path, content, _sealed)
    body = bytes(sealed.manifest)
    if hashlib.sha256(body).hexdigest() != sealed.manifest_sha256:
        raise _refused(path, "its own digest does not fit: it was changed after it was written")
    return body, sealed.manifest_sha256


def _decoded(path: Path, content: bytes, decoder: msgspec.json.Decoder[_Shape]) -> _Shape:
    try:
        return decoder.decode(content)
    except UNREADABLE as error:
        raise _refused(path, f"it is no manifest ({error})") from error


def _refused(path: Path, reason: str) -> CheckpointManifestError:
    return CheckpointManifestError(path=path, reason=reason)
