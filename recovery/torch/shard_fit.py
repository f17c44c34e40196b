"""Do the shards of a file fit this program? What is sharded here, on which meshes, and how that compares with what was saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from recovery.torch import module_names, shard_map


def is_sharded(parts: Mapping[str, Iterable[Any]]) -> bool:
    """Is any tensor of these parts a DTensor?"""
    return any(True for _ in _sharded(parts))


def put_back(payload: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Make DTensors of this world out of a rank's own file.

    Args:
        payload: as `shard_map.split` made it, of this rank.
        parts: the objects that it will be loaded into, without wrappers.

    Raises:
        CheckpointStateError: it was saved on another mesh, or placed in another way on this one. Nothing was loaded: a load would
            move shards between the ranks, which not all of them may be waiting for.
    """
    meshes = {shard_map.key_of(tensor.device_mesh): tensor.device_mesh for tensor in _sharded(parts)}
    joined = shard_map.join(payload, meshes)
    saved = dict(shard_map.tensors_in({"parts": joined["parts"]}))
    for at, here in _targets(parts, saved):
        _compare(at, saved[at], here)
    return joined


def _targets(
    parts: Mapping[str, list[Any]], saved: Mapping[shard_map.At, torch.Tensor]
) -> Iterator[tuple[shard_map.At, torch.Tensor]]:
    """What the tensors of the file will be copied into. An optimizer has none of its own before its first step: it takes the file's."""
    states = {
        name: [
            {} if isinstance(item, torch.optim.Optimizer) else module_names.state_of(item) for item in items
        ]
        for name, items in parts.items()
    }
    for at, here in shard_map.tensors_in({"parts": states}):
        if at in saved:
            yield at, here


def _compare(at: shard_map.At, saved: torch.Tensor, here: torch.Tensor) -> None:
    if isinstance(saved, DTensor) != isinstance(here, DTensor):
        there, now = ("is sharded", "is not") if isinstance(saved, DTensor) else ("is whole", "is sharded")
        raise shard_map.other_mesh(at, f"{there}, and the one of this program {now}")
    if isinstance(saved, DTensor) and isinstance(here, DTensor) and saved.placements != here.placements:
        raise shard_map.other_mesh(
            at, f"is placed by {saved.placements}, the one of this program by {here.placements}"
        )


def _sharded(parts: Mapping[str, Iterable[Any]]) -> Iterator[DTensor]:
    for items in parts.values():
        for item in items:
            for tensor in _tensors_of(item):
                if isinstance(tensor, DTensor):
                    yield tensor


def _tensors_of(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.nn.Module):
        yield from item.parameters()
        yield from item.buffers()
    elif isinstance(item, torch.optim.Optimizer):
        yield from parameters_of(item)
    else:
        # A wrapper around a model, running averages.
        yield from (tensor for _, tensor in shard_map.tensors_in(item.state_dict()))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Its parameters, in the order by which its state_dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
