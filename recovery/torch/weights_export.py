"""A model's weights out of a checkpoint, as safetensors: what `transformers` and plain PyTorch load. Needs safetensors (the extra `weights`).

One file `model.safetensors`, or several with `model.safetensors.index.json`, as `save_pretrained` names them. Nothing that lies in the folder
is changed, so a configuration or tokenizer that is there already stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from recovery.checkpoint.durable_files import ensure_directory, sync_directory
from recovery.checkpoint.whole_step import WholeStep
from recovery.errors import CheckpointStateError, UsageError
from recovery.torch.resharding import Saved
from recovery.torch.shard_map import At

FILE_BYTES_MAX = 5_000_000_000
"""As large as `save_pretrained` lets a file become."""
_STEM, _SUFFIX = "model", ".safetensors"
_INDEX = f"{_STEM}{_SUFFIX}.index.json"


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    files: tuple[Path, ...]
    tensors: int
    total_bytes: int
    left_out: tuple[str, ...]
    """Entries of the state_dict that are no tensors."""


def export_step(
    whole: WholeStep, directory: Path, *, part: str, number: int, file_bytes_max: int
) -> Exported:
    """As `export`, of the files in which all ranks have saved a step."""
    return export(Saved(whole), directory, part=part, number=number, file_bytes_max=file_bytes_max)


def export(
    saved: Saved,
    directory: Path,
    *,
    part: str = "model",
    number: int = 0,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Exported:
    """Write the weights of one module of a checkpoint.

    Args:
        saved: of any layout.
        directory: where to; made if absent.
        part: as `TrainState` was given it.
        number: where that part is a list of modules: which of them, 0-based.
        file_bytes_max: a file holds no more, unless one tensor alone is larger.

    Raises:
        UsageError: safetensors is not installed, or weights lie in the folder already.
        CheckpointStateError: the checkpoint has no such part, or what it has is no model.
        OSError: the folder cannot be written to.

    Cost: a copy of one file's tensors in memory at a time. A tensor that has two names is written under both.
    """
    try:
        from safetensors.torch import save_file  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            field="export-weights",
            reason="needs safetensors, which is not installed",
            next_step="pip install 'recovery-engine[weights]'.",
        ) from error
    places, left_out = _places(saved, part, number)
    directory = directory.absolute()
    ensure_directory(directory)
    _check_empty(directory)
    groups = list(_groups(saved, places, file_bytes_max))
    names = [_file_name(position, len(groups)) for position in range(len(groups))]
    for name, group in zip(names, groups, strict=True):
        tensors = {key: torch.empty(saved.size(at), dtype=saved.dtype(at)) for key, at in group.items()}
        saved.read_into({at: tensors[key] for key, at in group.items()})
        temporary = directory / f".{name}.part"
        save_file(tensors, temporary, metadata={"format": "pt"})
        _publish(temporary, directory / name)
    total = sum(_bytes(saved, at) for at in places.values())
    if len(names) > 1:
        weight_map = {key: name for name, group in zip(names, groups, strict=True) for key in group}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        temporary = directory / f".{_INDEX}.part"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n")
        _publish(temporary, directory / _INDEX)
    return Exported(tuple(directory / name for name in names), len(places), total, left_out)


def _places(saved: Saved, part: str, number: int) -> tuple[dict[str, At], tuple[str, ...]]:
    """Where each weight stands, by the name that its module knows it by; and what is no tensor."""
    items = saved.parts.get(part)
    if items is None or number >= len(items):
        known = ", ".join(f"{name} ({len(states)})" for name, states in sorted(saved.parts.items()))
        raise _no_model(part, f"the checkpoint has no number {number} of it; it has: {known}")
    state = items[number]
    at: At = ("parts", part, number)
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise _no_model(part, "is no module's state_dict")
    places = {key: (*at, key) for key, value in state.items() if isinstance(value, torch.Tensor)}
    if not places:
        raise _no_model(part, "holds no tensor by name, so it is no model")
    return places, tuple(key for key in state if key not in places)


def _no_model(part: str, reason: str) -> CheckpointStateError:
    return CheckpointStateError(
        field=part, reason=reason, next_step="Name a part that is a module (--part, --number)."
    )


def _check_empty(directory: Path) -> None:
    found = sorted(path.name for path in directory.glob(f"{_STEM}*{_SUFFIX}*"))
    if found:
        raise UsageError(
            field=str(directory),
            reason=f"weights lie there already ({found[0]})",
            next_step="Name another folder, or move them away.",
        )


def _groups(saved: Saved, places: dict[str, At], file_bytes_max: int) -> Iterator[dict[str, At]]:
    group: dict[str, At] = {}
    group_bytes = 0
    for key, at in places.items():
        size = _bytes(saved, at)
        if group and group_bytes + size > file_bytes_max:
            yield group
            group, group_bytes = {}, 0
        group[key] = at
        group_bytes += size
    yield group


def _bytes(saved: Saved, at: At) -> int:
    return saved.size(at).numel() * saved.dtype(at).itemsize


def _file_name(position: int, count: int) -> str:
    return f"{_STEM}{_SUFFIX}" if count == 1 else f"{_STEM}-{position + 1:05}-of-{count:05}{_SUFFIX}"


def _publish(temporary: Path, path: Path) -> None:
    """Sync a file and give it its name."""
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.rename(path)
    sync_directory(path.parent)
