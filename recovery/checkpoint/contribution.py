"""What a checkpoint is: of each rank one contribution, and that is one manifest with one or more files.

Everything that saves, finds, verifies, copies, keeps or removes checkpoints asks here which files belong to one.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

from recovery.checkpoint.position import Position
from recovery.core.message_fields import Count, ShortText

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class FileRole(str, Enum):
    """What a file holds."""

    STATE = "state"
    """Everything of this rank."""
    PART = "part"
    """Some tensors of a state that all ranks share, for all of them."""
    SHARD = "shard"
    """This rank's shards of a state that is spread over the ranks."""
    SIDE = "side"
    """What only this rank has: random generators, its position in the data."""
    FOREIGN = "foreign"
    """What a framework wrote by itself, in its own format."""


class Layout(str, Enum):
    """How the state of a job is spread over the contributions of its ranks."""

    RANK = "rank"
    """Each holds the whole state of its rank."""
    SHARDED = "sharded"
    """Each holds its rank's shards: all together are the state."""
    SHARED = "shared"
    """What all ranks have in common is written once, spread over them, into a directory that all of them see."""
    FOREIGN = "foreign"
    """As a framework wrote it."""


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a checkpoint, and what its bytes must be."""

    name: ShortText
    """A plain name beside the manifest; of a folder that a framework wrote, the path from there."""
    role: FileRole
    file_bytes: Count = msgspec.field(name="bytes")
    digest: Digest = msgspec.field(name="sha256")
    """SHA-256 of the file, hex."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's contribution to the checkpoint of one step: whose it is, where in training it stands, and which files it has."""

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
    """Of the last step, both 1-based."""
    files: tuple[ManifestFile, ...]
    """At least one."""
    versions: dict[ShortText, ShortText]
    """Frameworks that wrote it, conditions of the process, and what a state says of how it was built."""
    integrated: bool
    """True: the rank's files hold the full state. False: its shard."""
    layout: Layout = Layout.RANK
    replicated: str = ""
    """Digest (64 hex characters) of what all ranks have alike: of layout SHARED the SHA-256 of the state that is saved once for all, else of what
    DistributedDataParallel keeps alike (`core/policy/replica_difference.py`). Empty: nobody has computed it."""
    position: Position | None = None
    """Where training goes on; None: an earlier release wrote it, and only the loader's own state says that."""
    digest: str = ""
    """What names this contribution everywhere: the manifest's own seal; of format 1 the digest of its one file. Empty before it is sealed."""

    @property
    def file(self) -> str:
        """Name of the first file, or of the folder that it lies in; the manifest stands beside it."""
        return _first_part(self.files[0].name)

    @property
    def is_folder(self) -> bool:
        """Do its files lie in a folder that a framework wrote?"""
        return "/" in self.files[0].name

    @property
    def file_bytes(self) -> int:
        """Size of all files together, in bytes."""
        return sum(file.file_bytes for file in self.files)

    def paths(self, directory: Path) -> tuple[Path, ...]:
        """Where its files are, in the order in which it lists them, if it stands in this directory."""
        return tuple(directory / file.name for file in self.files)


def not_of(manifest: Manifest, *, job: str, run: int, rank: int | None) -> str:
    """Why a checkpoint is another's; empty when it is of this job, run and rank (None: of any)."""
    if (manifest.job, manifest.run) != (job, run):
        return f"it is of job {manifest.job!r} run {manifest.run}, not of job {job!r} run {run}"
    if rank not in (None, manifest.rank):
        return f"it is of rank {manifest.rank}, not of rank {rank}"
    return ""


def name_fault(files: tuple[ManifestFile, ...]) -> str:
    """Why these cannot be the names of one contribution's files; empty when they can.

    A manifest may come from anywhere, and its names decide what is read and removed: none leads out of its directory.
    """
    seen: set[str] = set()
    for file in files:
        parts = file.name.split("/")
        if len(parts) > 1 and file.role is not FileRole.FOREIGN:
            return f"it names a path ({file.name!r}) where a file name belongs"
        if any(part in ("", ".", "..") for part in parts) or "\0" in file.name:
            return f"it names a path ({file.name!r}) that leads elsewhere"
        if file.name in seen:
            return f"it names {file.name!r} twice"
        if len(parts) > 1 and parts[0] != _first_part(files[0].name):
            return f"it names files of two folders ({files[0].name!r}, {file.name!r})"
        seen.add(file.name)
    return ""


def _first_part(name: str) -> str:
    return name.partition("/")[0]
