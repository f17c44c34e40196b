"""Who wants to know which pass it is: what has a `set_epoch`, however deep a loader, a data set or a sampler holds it.

The loop over the passes is ours, so nobody else tells it. As in `own_generators`, no code of theirs is run to find it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from recovery.torch.attribute_values import is_users

_DEEP = 6
_LOOKED_AT_MAX, _OF_ONE_MAX = 2_000, 100
"""Objects in all, and of one list or dictionary: a data set may hold a million names of files."""
_NEVER = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, type)


def tell(root: Any, epoch: int) -> None:
    """Passes that are finished, to all of them."""
    for listener in listeners(root):
        listener.set_epoch(epoch)


def listeners(root: Any) -> list[Any]:
    """The nearest ones: what is inside of one is its own affair."""
    if hasattr(root, "set_epoch"):
        return [root]
    found, seen, left = [], {id(root)}, [(root, 0)]
    for holder, depth in itertools.islice(_growing(left), _LOOKED_AT_MAX):
        for one in _held(holder):
            if id(one) in seen or isinstance(one, _NEVER):
                continue
            seen.add(id(one))
            if callable(getattr(type(one), "set_epoch", None)):
                found.append(one)
            elif depth + 1 < _DEEP:
                left.append((one, depth + 1))
    return found


def _growing(left: list[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """The list grows meanwhile."""
    yield from left


def _held(holder: Any) -> list[Any]:
    kind = type(holder)
    if kind in (list, tuple):
        return list(holder[:_OF_ONE_MAX])
    if kind is dict:
        return list(itertools.islice(holder.values(), _OF_ONE_MAX))
    if issubclass(kind, (Dataset, Sampler, DataLoader)) or is_users(holder):
        return list(itertools.islice(vars(holder).values(), _OF_ONE_MAX))
    return []
