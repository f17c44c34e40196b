"""Gradients that FSDP2 keeps to itself: those that were not added over all ranks yet, and that no parameter shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from recovery.errors import CheckpointStateError


def refuse(parts: Mapping[str, list[Any]]) -> None:
    """Refuse to save a state without them: the next steps would be other ones.

    Args:
        parts: objects without wrappers, by the name of their part.

    Raises:
        CheckpointStateError: names the first parameter that has one.
    """
    for name, items in parts.items():
        for number, item in enumerate(items):
            found = next(_of(item), None)
            if found is not None:
                raise CheckpointStateError(
                    field=f"{name}[{number}].{found}",
                    reason="its gradient was not added over the ranks yet (set_requires_gradient_sync, set_requires_all_reduce), and a checkpoint would lack it",
                    next_step="Save at steps at which gradients are added, or give TrainState(gradients=False) if the loop clears them before it goes on.",
                )


def _of(item: Any) -> Iterator[str]:
    """Names of such parameters: `set_requires_gradient_sync(False)` leaves a gradient with this rank, `set_requires_all_reduce(False)` with a replica."""
    package = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(package, "FSDPModule", None)
    if kind is None or not isinstance(item, torch.nn.Module):
        return
    # torch 2.13 has no public name for what is asked here.
    for inner in item.modules():
        if not isinstance(inner, kind):
            continue
        for group in inner._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001
            of_replica = group._partial_reduce_output is not None  # noqa: SLF001
            for parameter in group.fsdp_params:
                whole = getattr(parameter, "_unsharded_param", None)
                alone = whole is not None and whole.grad is not None
                if of_replica or alone or parameter.unsharded_accumulated_grad is not None:
                    # It knows its whole name from the first forward pass on.
                    yield str(parameter._param_fqn or parameter._module_info.param_name)  # noqa: SLF001
