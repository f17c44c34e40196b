"""Gradients that are there at a step's end: the next backward pass may add to them, so they belong to the training state.

They do wherever a step of the session is a micro-batch and the optimizer steps after several of them. Whether a gradient that an optimizer
has used already will be cleared before the next backward pass cannot be known: a loop may go on adding to it, and one that was
set to zero is decayed where one that is absent is left out. So every gradient that is there is saved. A loop that clears them right
behind the optimizer's step, with `zero_grad()`, has none at a step's end, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from recovery.torch import module_names

Key = tuple[str, int, str]
"""(part, number in it, name of the parameter or its number in the optimizer)."""


def take(parts: Mapping[str, list[Any]]) -> dict[Key, torch.Tensor]:
    """The gradients that are there, detached. Not copied: as long as nobody trains on they do not change."""
    return {
        key: parameter.grad.detach() for key, parameter in parameters(parts) if parameter.grad is not None
    }


def put(parts: Mapping[str, list[Any]], saved: Mapping[Key, torch.Tensor]) -> list[Key]:
    """Give every parameter its own again, and none to those that had none; gives the keys, sorted, that fit no parameter of `parts`.

    Copied: those of one bucket of DistributedDataParallel come out of the file as parts of one tensor.
    """
    left = dict(saved)
    for key, parameter in parameters(parts):
        gradient = left.pop(key, None)
        if gradient is not None and gradient.shape != parameter.shape:
            left[key] = gradient
            continue
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
    return sorted(left)


def parameters(parts: Mapping[str, list[Any]]) -> Iterator[tuple[Key, torch.Tensor]]:
    """Each parameter once, by the first name that it has: of its module, else of its optimizer."""
    seen: set[int] = set()
    for key, parameter in (*_of_modules(parts), *_of_optimizers(parts)):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield key, parameter


def _of_modules(parts: Mapping[str, list[Any]]) -> Iterator[tuple[Key, torch.Tensor]]:
    for part, items in parts.items():
        for number, item in enumerate(items):
            if isinstance(item, torch.nn.Module):
                named = dict(item.named_parameters())
                names = module_names.plain_names(named)
                for name, parameter in named.items():
                    yield (part, number, names[name]), parameter


def _of_optimizers(parts: Mapping[str, list[Any]]) -> Iterator[tuple[Key, torch.Tensor]]:
    for part, items in parts.items():
        for number, item in enumerate(items):
            if isinstance(item, torch.optim.Optimizer):
                for place, parameter in enumerate(trained_by(item)):
                    yield (part, number, str(place)), parameter


def trained_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Its parameters, in the order by which its state_dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
