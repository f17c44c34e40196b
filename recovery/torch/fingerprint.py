"""What tells one history of a training from another: a digest of a state that costs one reading of its tensors, and no copy.

Of each tensor the sum of its bits, taken as 64-bit numbers, goes into a SHA-256 with its name, shape and dtype. It is the same on every
device, and whatever the order in which a device adds. It tells states of training apart; it is no guard against forgery or
damage: the SHA-256 of each file is.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size)
_WORD_BYTES = 8


def of_parts(parts: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 (hex) of each part by its name.

    A part is a tree of dicts, lists, tuples, tensors (strided, any dtype, any device) and plain values. Of any other object only the type counts.
    """
    return {name: _of(tree) for name, tree in parts.items()}


def joined(fingerprints: Mapping[str, str]) -> str:
    """SHA-256 (hex) of all parts together."""
    lines = (f"{name} {fingerprints[name]}\n" for name in sorted(fingerprints))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _of(tree: Any) -> str:
    sha256 = hashlib.sha256()
    sums: list[torch.Tensor] = []
    for where, leaf in _leaves(tree, ""):
        if isinstance(leaf, torch.Tensor):
            described = f"{tuple(leaf.shape)} {leaf.dtype}"
            sums.extend(_sums(leaf))
        else:
            described = repr(leaf) if type(leaf) in _PLAIN else type(leaf).__qualname__
        sha256.update(f"{where} = {described}\n".encode(errors="backslashreplace"))
    # Read when all are under way: a device is waited for once, and not once for each tensor.
    sha256.update(repr([int(total) for total in sums]).encode())
    return sha256.hexdigest()


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for position, inner in enumerate(value):
            yield from _leaves(inner, f"{where}[{position}]")
    else:
        yield where, value


def _sums(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums of the whole 64-bit words and of the bytes behind them, modulo 2**64."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 0:
        return ()
    if (flat.storage_offset() * flat.element_size()) % _WORD_BYTES:
        flat = flat.clone()
    content = flat.view(torch.uint8)
    whole = content.numel() // _WORD_BYTES * _WORD_BYTES
    return content[:whole].view(torch.int64).sum(), content[whole:].sum(dtype=torch.int64)
