"""What tells one history of a training from another: a digest of a state that costs one reading of its tensors, and no copy.

Of each tensor the sum of its bits, taken as 64-bit numbers, goes into a SHA-256 with its name, shape and dtype. It is the same on every
device, and whatever the order in which a device adds. It tells states of training apart; it is no guard against forgery or
damage: the SHA-256 of each file is.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size)
_WORD_BYTES = 8
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their bytes."""


def of_parts(parts: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 (hex) of each part by its name.

    A part is a tree of dicts, lists, tuples, tensors (strided, any dtype, any device) and plain values. Of any other object only the type counts.
    """
    return {name: _of(tree) for name, tree in parts.items()}


def joined(fingerprints: Mapping[str, str]) -> str:
    """SHA-256 (hex) of all parts together."""
    lines = (f"{name} {fingerprints[name]}\n" for name in sorted(fingerprints))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sums_of(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Of each tensor the sums of its bits: any change of one bit changes them."""
    sums = [_quick_sums(tensor) for tensor in tensors]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for of_it in sums:
        for total in of_it:
            by_device.setdefault(total.device, []).append(total)
    # One wait for a device, and not one for each tensor.
    read = {device: iter(torch.stack(totals).tolist()) for device, totals in by_device.items()}
    return [tuple(next(read[total.device]) for total in of_it) for of_it in sums]


def _quick_sums(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same as `_sums` for most tensors, with half the calls: at each save they cost more than the additions."""
    flat = tensor.detach()
    if not flat.is_contiguous() or flat.is_conj() or flat.is_neg():
        return _sums(tensor)
    item_bytes = flat.element_size()
    if flat.nbytes % _WORD_BYTES == 0 and (flat.storage_offset() * item_bytes) % _WORD_BYTES == 0:
        return (flat.view(-1).view(torch.int64).sum(),) if flat.dim() and flat.numel() else _sums(tensor)
    return (
        (flat.reshape(1).view(_INTEGERS[item_bytes])[0].long(),)
        if item_bytes in _INTEGERS and flat.numel() == 1
        else _sums(tensor)
    )


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
