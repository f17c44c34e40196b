"""A rank's payload of a checkpoint: what it says about itself and its process, and what it may hold."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch

from recovery.errors import CheckpointStateError

WHOLE = 1
"""Its `format` where every tensor in it is the whole one."""
SHARDED = 2
"""Its `format` with a shard map. Releases before it read format 1 only, and would take a shard for the whole."""
SHARDS = "shards"
"""Where the shard map stands."""

_SAFE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.Tensor,
    torch.nn.Parameter,
    torch.Size,
    torch.dtype,
    torch.device,
)


def refuse_unsafe(name: str, value: Any, where: str = "") -> None:
    """Refuse what torch.load would refuse with weights_only=True, which runs no code of the file: when it is saved, for later nobody can change the program.

    What is surely safe is passed by its type; the rest is tried with torch, without the weights. `name` is that of the part whose state it is.

    Raises:
        CheckpointStateError: names the type and its place.
    """
    if type(value) in _SAFE:
        return
    if type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            if type(key) not in _SAFE:
                refuse_unsafe(name, key, f"{where} (a key)")
            if type(inner) not in _SAFE:
                refuse_unsafe(name, inner, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, set):
        for position, inner in enumerate(value):
            if type(inner) not in _SAFE:
                refuse_unsafe(name, inner, f"{where}[{position}]")
    elif not _loads(value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointStateError(
            field=name,
            reason=f"its state_dict holds a {kind} at {where}, which a safe load (weights_only=True) refuses",
            next_step="Keep only tensors, numbers, text, lists and dicts in it.",
        )


def _loads(value: Any) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - pickle and torch raise a dozen types for what they refuse
        return False
    return True


def versions() -> dict[str, str]:
    """For a manifest: of the framework, and what else of this process decides the order of additions. What differs at a load is said."""
    return {
        "torch": str(torch.__version__),
        "torch threads": str(torch.get_num_threads()),
        "torch cpu capability": torch.backends.cpu.get_cpu_capability(),
    }
