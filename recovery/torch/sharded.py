"""A training state whose tensors are spread over the ranks: FSDP2, HSDP, tensor parallel, whatever else is made of DTensors.

The face that `state.py` uses. What it stands for costs most of a second to import, so a program without DTensors never does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from recovery.torch.payload import SHARDS


def is_sharded(parts: Mapping[str, list[Any]]) -> bool:
    """Is any tensor of these parts spread over the ranks?"""
    if not _may_be():
        return False
    from recovery.torch import shard_fit  # noqa: PLC0415 - see this module's head

    return shard_fit.is_sharded(parts)


def split(payload: dict[str, Any]) -> dict[str, Any]:
    """Put the local tensor in the place of every DTensor, and add the shard map. See `shard_map.split`."""
    if not _may_be():
        return payload
    from recovery.torch import shard_map  # noqa: PLC0415 - see this module's head

    return shard_map.split(payload)


def put_back(payload: dict[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Make DTensors of this world out of a rank's own file. See `shard_fit.put_back`."""
    if SHARDS not in payload and not is_sharded(parts):
        return payload
    from recovery.torch import shard_fit  # noqa: PLC0415 - see this module's head

    return shard_fit.put_back(payload, parts)


def _may_be() -> bool:
    """Whoever has made a DTensor has imported its package."""
    return "torch.distributed.tensor" in sys.modules
