"""Weights that torch.nn.utils.prune has pruned (ModelPruning): Lightning's checkpoints lack the masks, and what lies below them, which training may bring back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning
from torch.nn.utils import prune

Taken = dict[str, dict[str, dict[str, Any]]]
"""By module and tensor: its mask, the parameter below it, and whether that has the memory of the ticket that it is reset to.

Lightning 2.6 copies the ticket's address, and so trains it on: the next reset does nothing.
"""


def take(trainer: Trainer) -> Taken:
    """All of them, not copied."""
    tickets = _tickets(trainer)
    taken: Taken = {}
    for name, inner in trainer.lightning_module.named_modules():
        for tensor in names_of(inner):
            below, ticket = inner.get_parameter(f"{tensor}_orig").detach(), tickets.get((id(inner), tensor))
            taken.setdefault(name, {})[tensor] = {
                "mask": inner.get_buffer(f"{tensor}_mask"),
                "orig": below,
                "is_ticket": ticket is not None and ticket.data_ptr() == below.data_ptr(),
            }
    return taken


def as_built(state: dict[str, Any], taken: Taken) -> None:
    """Have a module's state be one that the program can load where nothing is pruned yet: of the weights as they are used."""
    for name, tensors in taken.items():
        for tensor, values in tensors.items():
            key = f"{name}.{tensor}" if name else tensor
            state[key] = values["mask"].to(values["orig"].dtype) * values["orig"]
            for made in (f"{key}_mask", f"{key}_orig"):
                state.pop(made, None)


def put(trainer: Trainer, saved: Taken) -> None:
    """Prune them again: parameters stay the same objects."""
    modules, tickets = dict(trainer.lightning_module.named_modules()), _tickets(trainer)
    for name, tensors in saved.items():
        for tensor, values in tensors.items():
            inner = modules[name]
            parameter = inner.get_parameter(tensor)
            with torch.no_grad():
                parameter.copy_(values["orig"])
            repeat: Any = prune.custom_from_mask
            repeat(inner, tensor, values["mask"].to(parameter.device))
            if values["is_ticket"]:
                tickets[id(inner), tensor].data = parameter.data
    _rename_in_groups(trainer)


def _rename_in_groups(trainer: Trainer) -> None:
    """A finetuning callback looks up the parameters of its groups by the names that they had when it made the group: before they were pruned."""
    names = dict(trainer.lightning_module.named_parameters())
    callbacks = [callback for callback in trainer.callbacks if isinstance(callback, BaseFinetuning)]
    for callback in callbacks:
        for groups in callback._internal_optimizer_metadata.values():  # noqa: SLF001 - nothing public tells
            for group in groups:
                group["params"] = [
                    f"{name}_orig" if name not in names and f"{name}_orig" in names else name
                    for name in group["params"]
                ]


def _tickets(trainer: Trainer) -> dict[tuple[int, str], torch.Tensor]:
    """What the lottery ticket hypothesis resets a module's tensors to."""
    return {
        (id(callback._parameters_to_prune[number][0]), name): getattr(of["data"], name)  # noqa: SLF001 - nothing public tells
        for callback in trainer.callbacks
        if isinstance(callback, ModelPruning)
        for of in (callback._original_layers or {}).values()  # noqa: SLF001 - as above
        for number, name in of["names"]
    }


def names_of(module: torch.nn.Module) -> list[str]:
    """Of the tensors that this module itself has pruned."""
    return [hook._tensor_name for hook in _hooks(module)]  # noqa: SLF001 - torch has no public name for it


def structure(module: torch.nn.Module) -> list[Any]:
    """Names of all that is in a module, and its hooks, without what pruning puts there."""
    pruned, ours = names_of(module), list(map(id, _hooks(module)))
    left_out = {f"{name}_{part}" for name in pruned for part in ("orig", "mask")}
    hooks = module._forward_pre_hooks  # noqa: SLF001 - as above
    return [
        sorted(({*module._parameters, *pruned}) - left_out),  # noqa: SLF001 - as above
        [name for name in module._buffers if name not in left_out],  # noqa: SLF001 - as above
        list(module._modules),  # noqa: SLF001 - as above
        list(module._forward_hooks),  # noqa: SLF001 - as above
        [key for key, hook in hooks.items() if id(hook) not in ours],
    ]


def _hooks(module: torch.nn.Module) -> Iterator[Any]:
    for hook in module._forward_pre_hooks.values():  # noqa: SLF001 - as above
        if isinstance(hook, prune.BasePruningMethod):
            yield hook
