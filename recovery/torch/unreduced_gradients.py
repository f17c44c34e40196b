"""Gradients that FSDP2 keeps to itself: those that were not added over all ranks yet, and that no parameter shows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from recovery.errors import CheckpointStateError


def refuse(parts: Mapping[str, list[Any]]) -> None:
    """Refuse to save a state without them: the next steps would be other ones.

    Raises:
        CheckpointStateError: names the first parameter that has one.
    """
    for name, items in parts.items():
        for number, item in enumerate(items):
            found = first(groups_of(item)) if isinstance(item, torch.nn.Module) else ""
            if found:
                raise CheckpointStateError(
                    field=f"{name}[{number}].{found}",
                    reason="its gradient was not added over the ranks yet (set_requires_gradient_sync, set_requires_all_reduce), and a checkpoint would lack it",
                    next_step="Save at steps at which gradients are added, or give TrainState(gradients=False) if the loop clears them before it goes on.",
                )


def fsdp_modules(module: torch.nn.Module) -> Iterator[Any]:
    """The modules in it that FSDP2 takes care of, itself perhaps."""
    package = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(package, "FSDPModule", None)
    return iter(()) if kind is None else (inner for inner in module.modules() if isinstance(inner, kind))


def groups_of(module: torch.nn.Module) -> list[Any]:
    """What FSDP2 keeps of each group of parameters of a module. Empty where it keeps nothing."""
    return [group for inner in fsdp_modules(module) for group in _of_state(inner._get_fsdp_state())]  # noqa: SLF001 - torch has no public name for it


def _of_state(state: Any) -> list[Any]:
    # Read in torch 2.13, which may have several for a module, and in 2.11, which has one or none.
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)  # noqa: SLF001 - torch has no public name for it
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # noqa: SLF001 - as above


def first(groups: Iterable[Any]) -> str:
    """A parameter of these groups that has such a gradient: its name; empty: none has.

    `set_requires_gradient_sync(False)` leaves it with this rank alone, `set_requires_all_reduce(False)` with the ranks of one replica.
    """
    for group in groups:
        of_replica = group._partial_reduce_output is not None  # noqa: SLF001 - as above
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            alone = whole is not None and whole.grad is not None
            if of_replica or alone or parameter.unsharded_accumulated_grad is not None:
                # It knows its whole name from the first forward pass on.
                return str(parameter._param_fqn or parameter._module_info.param_name)  # noqa: SLF001 - as above
    return ""
