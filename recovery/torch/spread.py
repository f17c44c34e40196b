"""Is a tensor spread over the ranks, and which part of it has this one? Asks without importing what spreads tensors: that takes most of a second."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from typing_extensions import TypeIs

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def may_be() -> bool:
    """A program that has made a DTensor has imported its package."""
    return "torch.distributed.tensor" in sys.modules


def is_spread(tensor: torch.Tensor) -> TypeIs[DTensor]:
    """Is it a DTensor, of which this rank has a part?"""
    return may_be() and isinstance(tensor, sys.modules["torch.distributed.tensor"].DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, detached, in the tensor's memory; of one that is not spread the tensor itself, detached."""
    if not is_spread(tensor):
        return tensor.detach()
    with torch.no_grad():
        return tensor.to_local().detach()
