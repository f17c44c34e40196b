"""A state as one message without pickle: plain values as msgpack, and for each tensor where it is, what it is, and its number.

What can be carried: None, bool, int (64 bits), float, str, bytes, list, tuple, dict, OrderedDict and Counter with keys of text or numbers,
and dense tensors.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

_PLAIN = (type(None), bool, int, float, str, bytes)
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1
"""What msgpack can carry."""
_DICTS: dict[type, str] = {dict: "d", OrderedDict: "o", Counter: "c"}
_DICTS_BACK: dict[str, Callable[[dict[Any, Any]], Any]] = {"d": dict, "o": OrderedDict, "c": Counter}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class CannotCarryError(Exception):
    """The text says what cannot be carried, and where it is."""


class TensorNote(msgspec.Struct, frozen=True, array_like=True):
    """What a receiver must know of a tensor before it comes."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    """Its type: cpu, cuda."""
    stride: tuple[int, ...] | None
    """Where it lies in memory in another order than that of its shape, without holes."""

    def empty(self, device: torch.device) -> torch.Tensor:
        """Such a tensor, with anything in it."""
        dtype = _DTYPES[self.dtype]
        if self.stride is not None:
            return torch.empty_strided(self.shape, self.stride, dtype=dtype, device=device)
        return torch.empty(self.shape, dtype=dtype, device=device)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Can the bytes go straight into this one?"""
        return (
            tuple(tensor.shape) == self.shape
            and str(tensor.dtype) == self.dtype
            and tensor.device.type == self.device
        )

    @property
    def size(self) -> int:
        """In bytes."""
        return torch.Size(self.shape).numel() * _DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Packed:
    """A tree taken apart."""

    header: bytes
    notes: list[TensorNote]
    tensors: list[torch.Tensor]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    tree: Any
    notes: list[TensorNote]


_DECODER = msgspec.msgpack.Decoder(_Header)


def pack(tree: Mapping[str, Any]) -> Packed:
    """Take a tree apart.

    Raises:
        CannotCarryError: it holds what this module's head does not name.
    """
    notes: list[TensorNote] = []
    tensors: list[torch.Tensor] = []
    plain = _packed(tree, "", notes, tensors)
    return Packed(msgspec.msgpack.encode(_Header(plain, notes)), notes, tensors)


def read_notes(header: bytes) -> list[TensorNote]:
    """What tensors come behind a header.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _DECODER.decode(header).notes


def unpack(header: bytes, tensors: list[torch.Tensor]) -> Any:
    """Put the tree together again, with these tensors."""
    return _unpacked(_DECODER.decode(header).tree, tensors)


def refusals(tree: Any, where: str) -> Iterator[str]:
    """What of a tree cannot be carried: at most one, in words."""
    try:
        _packed(tree, where, [], [])
    except CannotCarryError as error:
        yield str(error)


def _packed(value: Any, where: str, notes: list[TensorNote], tensors: list[torch.Tensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if kind is int and not _INTEGER_MIN <= value <= _INTEGER_MAX:
            reason = f"{where} is an integer of more than 64 bits"
            raise CannotCarryError(reason)
        return value
    if kind in _DICTS:
        for key in value:
            if type(key) not in (str, int):
                reason = f"{where} has a {type(key).__qualname__} as key"
                raise CannotCarryError(reason)
        items = [
            [_packed(key, where, notes, tensors), _packed(inner, f"{where}/{key}", notes, tensors)]
            for key, inner in value.items()
        ]
        return [_DICTS[kind], items]
    if kind in (list, tuple):
        inside = [_packed(inner, f"{where}/{place}", notes, tensors) for place, inner in enumerate(value)]
        return ["t" if kind is tuple else "l", inside]
    if kind in (torch.Tensor, torch.nn.Parameter):
        notes.append(_noted(value, where))
        tensors.append(value.detach())
        return ["x", len(tensors) - 1]
    reason = f"{where} is a {kind.__module__}.{kind.__qualname__}"
    raise CannotCarryError(reason)


def _noted(tensor: torch.Tensor, where: str) -> TensorNote:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        reason = f"{where} is a tensor that is not dense ({tensor.layout}, {tensor.dtype}, {tensor.device})"
        raise CannotCarryError(reason)
    stride = None
    if not tensor.is_contiguous() and torch.empty_like(tensor).stride() == tensor.stride():
        stride = tensor.stride()
    return TensorNote(where, tuple(tensor.shape), str(tensor.dtype), tensor.device.type, stride)


def _unpacked(value: Any, tensors: list[torch.Tensor]) -> Any:
    if type(value) is not list:
        return value
    tag, content = value
    if tag == "x":
        return tensors[content]
    if tag in _DICTS_BACK:
        pairs = {_unpacked(key, tensors): _unpacked(inner, tensors) for key, inner in content}
        return _DICTS_BACK[tag](pairs)
    inside = [_unpacked(inner, tensors) for inner in content]
    return tuple(inside) if tag == "t" else inside
