"""What a checkpoint may hold: what torch.load takes with weights_only=True, which runs no code of the file."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch

from recovery.errors import CheckpointStateError

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


def check(name: str, value: Any, where: str = "") -> None:
    """Refuse what a safe load would refuse, when it is saved: later nobody can change the program.

    What is surely safe is passed by its type; the rest is tried with torch, without the weights.

    Args:
        name: of the part whose state it is.
        value: the state, or what stands in it at `where`.
        where: the way to it, for the error.

    Raises:
        CheckpointStateError: names the type and its place.
    """
    if type(value) in _SAFE:
        return
    if type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            if type(key) not in _SAFE:
                check(name, key, f"{where} (a key)")
            if type(inner) not in _SAFE:
                check(name, inner, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, set):
        for position, inner in enumerate(value):
            if type(inner) not in _SAFE:
                check(name, inner, f"{where}[{position}]")
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
