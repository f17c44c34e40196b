"""A training state whose tensors are spread over the ranks: FSDP2, HSDP, tensor parallel, whatever else is made of DTensors.

What `state.py` asks. The modules that answer cost most of a second to import, so a program without DTensors never does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from recovery.torch.payload import SHARDS
from recovery.torch.spread import may_be

_logger = logging.getLogger("recovery.torch")


def is_sharded(parts: Mapping[str, list[Any]]) -> bool:
    """Is any tensor of these parts spread over the ranks?"""
    if not may_be():
        return False
    from recovery.torch import shard_fit  # noqa: PLC0415 - see this module's head

    return shard_fit.is_sharded(parts)


def split(payload: dict[str, Any]) -> dict[str, Any]:
    """Put the local tensor in the place of every DTensor, and add the shard map. See `shard_map.split`."""
    if not may_be():
        return payload
    from recovery.torch import shard_map  # noqa: PLC0415 - see this module's head

    return shard_map.split(payload)


def put_back(payload: dict[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Make DTensors of this world out of a rank's own file. See `shard_fit.put_back`."""
    if SHARDS not in payload and not is_sharded(parts):
        return payload
    from recovery.torch import shard_fit  # noqa: PLC0415 - see this module's head

    return shard_fit.put_back(payload, parts)


def forget_meshes() -> None:
    """Empty torch's memory of how operations place their results, at the end of a world.

    It knows meshes by their shape and ranks, so in the next world it would answer with meshes of this one: with the place that this process had
    here, and with groups that are gone.
    """
    if not may_be():
        return
    from torch.distributed.tensor import debug  # noqa: PLC0415 - see this module's head

    clear = getattr(debug, "_clear_sharding_prop_cache", None)
    if clear is None:
        _logger.warning(
            "event=meshes_kept torch %s has no way to forget the meshes of an earlier world",
            torch.__version__,
        )
    else:
        clear()
