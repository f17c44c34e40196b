"""Values of attributes: which of them a checkpoint can hold, and whether one has changed since it was looked at."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import torch
from typing_extensions import override

_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype)
_DICTS = (dict, OrderedDict)
_KEPT_MAX = 1_000_000
"""Elements of one value: what is larger is a cache, by which no checkpoint is to grow."""
_COMPARED_MAX = 10_000
"""Of a longer list only the length is compared: a data set may hold a million names of files."""
_DEEP = 6
FRAMEWORKS = frozenset({"torch", "lightning", "torchmetrics", "recovery", "numpy"})


def root(kind: type) -> str:
    """Of the package that a class is from."""
    return kind.__module__.partition(".")[0]


def is_users(found: Any) -> bool:
    """Is it an object with attributes, of a class that is no framework's and not Python's?"""
    home = root(type(found))
    return hasattr(found, "__dict__") and home not in FRAMEWORKS and home not in sys.stdlib_module_names


class NotPlainError(Exception):
    """No number, text or tensor, nor a list or dict of them, or too large."""


class Opaque:
    """What is compared, and never kept."""

    def __init__(self, marked: Any) -> None:
        """Of its mark."""
        self._marked = marked

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other._marked == self._marked

    __hash__ = None  # type: ignore[assignment]  # it is compared only


class Same:
    """An object that equals itself only. It is held, since an id may be given again."""

    def __init__(self, value: Any) -> None:
        """Of any object."""
        self._value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other._value is self._value

    __hash__ = None  # type: ignore[assignment]  # it is compared only


def mark(value: Any, deep: int = 0) -> Any:
    """What differs from a later mark if the value has changed meanwhile, in its place too."""
    kind = type(value)
    if kind in _SCALARS:
        return kind, value
    if isinstance(value, torch.Tensor):
        return Same(value), 0 if value.is_inference() else value._version  # noqa: SLF001 - torch has no public name for it
    if kind not in (list, tuple, set, *_DICTS) or deep > _DEEP:
        return value if kind is Opaque else Same(value)
    if len(value) > _COMPARED_MAX:
        return Same(value), len(value)
    if kind is set:
        return kind, frozenset(value)
    return kind, tuple(mark(inner, deep + 1) for inner in (value.items() if kind in _DICTS else value))


def copied(value: Any, left: list[int] | None = None) -> Any:
    """Copy lists and dicts, with the same tensors in them, detached.

    Raises:
        NotPlainError: there is something else in it.
    """
    left = [_KEPT_MAX] if left is None else left
    kind = type(value)
    left[0] -= value.numel() if kind is torch.Tensor else 1
    if left[0] < 0:
        raise NotPlainError
    if kind in _SCALARS:
        return value
    if kind is torch.Tensor and value.layout is torch.strided:
        return value.detach()
    if kind in _DICTS:
        return kind((copied(key, left), copied(inner, left)) for key, inner in value.items())
    if kind in (list, tuple, set):
        return kind(copied(inner, left) for inner in value)
    raise NotPlainError


def is_on_device(value: Any) -> bool:
    """Is there a tensor in it that is not on the CPU?"""
    if isinstance(value, torch.Tensor):
        return value.device.type != "cpu"
    inner = value.values() if type(value) in _DICTS else value if type(value) in (list, tuple) else ()
    return any(map(is_on_device, inner))


def moved(value: Any, device: torch.device) -> Any:
    """A copy whose tensors are on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if type(value) in _DICTS:
        return type(value)((key, moved(inner, device)) for key, inner in value.items())
    return type(value)(moved(inner, device) for inner in value) if type(value) in (list, tuple) else value
