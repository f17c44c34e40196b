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
from recovery.torch.held_objects import OF_ONE_MAX, reached

_NEVER = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, type)


def tell(root: Any, epoch: int) -> None:
    """Passes that are finished, to all of them."""
    for listener in listeners(root):
        listener.set_epoch(epoch)


def listeners(root: Any) -> list[Any]:
    """The nearest ones: what is inside of one is its own affair."""
    if hasattr(root, "set_epoch"):
        return [root]
    return [one for _, _, one in reached(root, _held, lambda one: not _listens(one)) if _listens(one)]


def _listens(one: Any) -> bool:
    return callable(getattr(type(one), "set_epoch", None))


def _held(holder: Any) -> Iterator[tuple[str, Any]]:
    kind, values = type(holder), list[Any]()
    if kind in (list, tuple):
        values = list(holder[:OF_ONE_MAX])
    elif kind is dict:
        values = list(itertools.islice(holder.values(), OF_ONE_MAX))
    elif issubclass(kind, (Dataset, Sampler, DataLoader)) or is_users(holder):
        values = list(itertools.islice(vars(holder).values(), OF_ONE_MAX))
    yield from (("", one) for one in values if not isinstance(one, _NEVER))
