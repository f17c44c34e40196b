"""Names of checkpoint files: `<prefix>-<epoch>_<step in epoch>.ckpt`, MindSpore's convention, so that its tools read them too.

MindSpore itself can be made to write `.safetensors`.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from recovery.errors import UsageError

SUFFIX = ".ckpt"
SUFFIXES = (SUFFIX, ".safetensors")
MANIFEST_SUFFIX = ".json"
KEPT_INFIX = ".kept-"
"""Between a name and a number: what lay there and was not written over."""

PREFIX_BYTES_MAX = 128
"""File systems end a name at 255 bytes; two 16-digit numbers and what a temporary name adds take up to 80 of them."""

_NAME = re.compile(
    r"(?P<prefix>.+)-(?P<epoch>[1-9][0-9]{0,15})_(?P<step>[1-9][0-9]{0,15})\.(ckpt|safetensors)", re.DOTALL
)


class CheckpointName(msgspec.Struct, frozen=True, kw_only=True):
    """What a file name says."""

    prefix: str
    epoch: int
    """1-based."""
    step_in_epoch: int
    """1-based."""


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that could lead out of its directory, hide the file or break a log line.

    Raises:
        UsageError: it is empty, too long, begins with a dot, or holds a slash or something unprintable.
    """
    reason = _fault(prefix)
    if reason:
        raise UsageError(
            field=f"prefix={prefix!r}",
            reason=reason,
            next_step="Choose a plain name such as 'train'; the directory is an argument of its own.",
        )


def file_name(prefix: str, *, epoch: int, step_in_epoch: int) -> str:
    """Name the file of one place in training, both numbers 1-based: `train-2_400.ckpt`.

    Raises:
        UsageError: the prefix cannot be one.
    """
    check_prefix(prefix)
    assert epoch >= 1, "epochs count from 1"
    assert step_in_epoch >= 1, "steps in an epoch count from 1"
    return f"{prefix}-{epoch}_{step_in_epoch}{SUFFIX}"


def parse(name: str) -> CheckpointName | None:
    """Read a file name, the last `-` and `_` deciding; None for what neither `file_name` nor MindSpore makes."""
    match = _NAME.fullmatch(name)
    if match is None or _fault(match["prefix"]):
        return None
    return CheckpointName(prefix=match["prefix"], epoch=int(match["epoch"]), step_in_epoch=int(match["step"]))


def manifest_path(path: Path) -> Path:
    """Name the manifest beside a checkpoint: of a file `train-2_400.json`, of a folder that one rank has for itself `step_500.json`."""
    name = path.name if is_folder(path.name) else Path(path.name).stem
    return path.with_name(name + MANIFEST_SUFFIX)


def is_folder(name: str) -> bool:
    """Is this the name of a checkpoint that is a folder? Its name may have dots; only those of files end as files do."""
    return not name.endswith(SUFFIXES)


def rank_manifest_path(folder: Path, rank: int) -> Path:
    """Name a rank's manifest beside a folder that all ranks write together: `step_500.rank1.json`."""
    return folder.with_name(f"{folder.name}.rank{rank}{MANIFEST_SUFFIX}")


def manifest_beside(path: Path, rank: int | None) -> Path:
    """Find which manifest is a rank's own (None: nobody's in particular): a folder has one, or one for each rank."""
    if rank is not None and is_folder(path.name):
        own = rank_manifest_path(path, rank)
        if own.exists():
            return own
    return manifest_path(path)


def _fault(prefix: str) -> str:
    """Why this is no prefix; empty when it is one."""
    if not prefix:
        return "it is empty"
    # Undecodable bytes are not printable either; no message can carry them.
    if not prefix.isprintable():
        return "it holds a character that cannot be printed"
    if "/" in prefix:
        return "it holds a slash"
    if prefix.startswith("."):
        return "it begins with a dot, which hides the file"
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        return f"it is longer than {PREFIX_BYTES_MAX} bytes"
    return ""
