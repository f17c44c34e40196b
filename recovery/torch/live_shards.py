"""Live rollback of a state that is spread over the ranks: which other ranks hold this rank's part, and how a part becomes a tensor of another world.

The packages that spread tensors cost most of a second to import: a program that has a tensor of theirs has imported them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed

from recovery.torch import unreduced_gradients
from recovery.torch.spread import is_spread, local

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def replicas(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """The ranks that hold the same parts of all these tensors, this rank among them, in order.

    On a mesh of two by two (`replicate`, `shard`) rank 0 holds what rank 2 holds. A tensor that is whole on every rank of its mesh is
    held by all of them.

    Returns:
        Only this rank where nobody else does; empty where no tensor is spread.
    """
    found: set[int] | None = None
    for tensor in tensors:
        if is_spread(tensor):
            alike = set(_replicas(tensor))
            found = alike if found is None else found & alike
    return tuple(sorted(found)) if found is not None else ()


def _replicas(tensor: DTensor) -> list[int]:
    mesh = tensor.device_mesh
    own = mesh.get_coordinate()
    if own is None:
        # This process is not on the mesh: nobody is like it.
        return [distributed.get_rank()]
    index = tuple(
        slice(None) if placement.is_replicate() else place
        for place, placement in zip(own, tensor.placements, strict=True)
    )
    return [int(rank) for rank in mesh.mesh[index].flatten().tolist()]


def is_placed_like(tensor: DTensor, parameter: torch.Tensor) -> bool:
    """Is it spread over the same ranks in the same way?"""
    return (
        is_spread(parameter)
        and tensor.device_mesh == parameter.device_mesh
        and tensor.placements == parameter.placements
        and tensor.shape == parameter.shape
    )


def spread_like(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Make a tensor of this rank's part of it, spread as a parameter of this world is; where that is not spread, `part`. No collective."""
    if not is_spread(parameter):
        return part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - see this module's head

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def group_of(tensors: Iterable[torch.Tensor], replicas: Sequence[int]) -> distributed.ProcessGroup | None:
    """The process group of exactly these ranks that a mesh of these tensors has already; None: none has one."""
    for tensor in tensors:
        if not is_spread(tensor):
            continue
        whole = [place for place, placement in enumerate(tensor.placements) if placement.is_replicate()]
        if len(whole) == 1:
            group = tensor.device_mesh.get_group(whole[0])
            if distributed.get_process_group_ranks(group) == list(replicas):
                return group
    return None


def described(tensor: torch.Tensor) -> str:
    """How it is spread, to be added to its shape; empty: it is not."""
    if not is_spread(tensor):
        return ""
    return f" {tuple(local(tensor).shape)} by {tensor.placements} on {tuple(tensor.device_mesh.shape)}"


def show_own_parts(module: torch.nn.Module) -> None:
    """Let a module of FSDP2 that was left in the middle of a pass have this rank's parts as its parameters again. No collective."""
    if any(unreduced_gradients.fsdp_modules(module)):
        # A hook of theirs does that, whatever the module was doing; `reshard` does not while it is in its forward pass.
        module.state_dict()
