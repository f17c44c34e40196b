"""Tensors that are spread over the ranks: FSDP2, HSDP, tensor parallel, whatever else is made of DTensors.

Asks without importing what spreads them, nor shard_map.py, which works on them: either takes most of a second, and a program without
DTensors never pays it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import TypeIs

from recovery.torch.payload import SHARDS

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_logger = logging.getLogger("recovery.torch")


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


def is_sharded(parts: Mapping[str, list[Any]]) -> bool:
    """Is any tensor of these parts spread over the ranks?"""
    if not may_be():
        return False
    from recovery.torch import shard_map  # noqa: PLC0415 - see this module's head

    return shard_map.is_sharded(parts)


def split(payload: dict[str, Any]) -> dict[str, Any]:
    """Put the local tensor in the place of every DTensor, and add the shard map. See `shard_map.split`."""
    if not may_be():
        return payload
    from recovery.torch import shard_map  # noqa: PLC0415 - see this module's head

    return shard_map.split(payload)


def put_back(payload: dict[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Make DTensors of this world out of a rank's own file. See `shard_map.put_back`."""
    if SHARDS not in payload and not is_sharded(parts):
        return payload
    from recovery.torch import shard_map  # noqa: PLC0415 - see this module's head

    return shard_map.put_back(payload, parts)


def forget_meshes() -> None:
    """Empty torch's memory of how operations place their results, at the end of a world.

    It knows meshes by their shape and ranks, so in the next world it would answer with meshes of this one: with the place that this process had
    here, and with groups that are gone.
    """
    if not may_be():
        return
    # As torch.distributed.tensor.debug._clear_sharding_prop_cache does, whose import takes 14 ms of a survivor's first recovery.
    try:
        dispatcher = sys.modules["torch.distributed.tensor"].DTensor._op_dispatcher  # noqa: SLF001 - torch has no public call
        dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
        torch._C._clear_DTensor_sharding_propagator_cache()  # noqa: SLF001 - as above
    except AttributeError:
        _logger.warning(
            "event=meshes_kept torch %s has no way to forget the meshes of an earlier world",
            torch.__version__,
        )
