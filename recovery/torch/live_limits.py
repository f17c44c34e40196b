"""What of a training state can be neither derived nor given to another rank, found before anything is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from recovery.torch import live_header, outside_state_dict, spread
from recovery.torch.live_parts import LiveParts

SMALL_BYTES_MAX = 2**20
"""Of everything that is copied at every step without being noted as large. Ten times as much would be felt in each step."""


def reasons(parts: LiveParts, *, per_rank: Iterable[str]) -> tuple[str, ...]:
    """Say what stands in the way, a sentence each."""
    found = [
        f"Part {name} differs between the ranks: what a lost rank had is lost." for name in sorted(per_rank)
    ]
    if len(parts.replicas) == 1:
        found.append("Its tensors are spread over the ranks: no rank has what a lost one had.")
    for name, module in parts.modules.items():
        found += _of_module(name, module)
        if parts.replicas:
            found += _of_spread(name, module)
    if parts.replicas:
        found += _whole_beside_parts(parts)
    for _, wrapped, _ in parts.wrapped:
        found += _of_wrapper(wrapped())
    for name, optimizer in parts.optimizers.items():
        found += _of_optimizer(name, optimizer)
    for name, loader in parts.loaders.items():
        if loader.why_not_derivable:
            found.append(f"{name}: {loader.why_not_derivable}.")
    small = {name: item.state_dict() for name, item in parts.others.items()}
    found += [
        f"{refused}, which cannot be sent."
        for name, tree in small.items()
        for refused in live_header.refusals(tree, name)
    ]
    if size := too_large(small):
        found.append(size)
    return tuple(found)


def too_large(small: Mapping[str, Any]) -> str:
    """A sentence if these states are more than what is copied at every step, else empty."""
    sizes = {name: sum(_sizes(tree)) for name, tree in small.items()}
    if sum(sizes.values()) <= SMALL_BYTES_MAX:
        return ""
    name = max(sizes, key=lambda part: sizes[part])
    return (
        f"The states of {', '.join(sizes)} have {sum(sizes.values())} bytes, most of them in {name}: "
        f"more than {SMALL_BYTES_MAX} are not copied at every step."
    )


def _of_module(name: str, module: torch.nn.Module) -> Iterator[str]:
    for prefix, inner in module.named_modules():
        path = f"{name}.{prefix}" if prefix else name
        if isinstance(inner, DistributedDataParallel):
            yield f"{path} is a DistributedDataParallel inside a module, and would keep its world alive: give the bare model."
        if type(inner).get_extra_state is not torch.nn.Module.get_extra_state:
            yield f"{path} ({type(inner).__name__}) has an extra state of its own, which cannot be sent."
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    if lazy := next((path for path, tensor in tensors if is_lazy(tensor)), ""):
        yield f"{name}.{lazy} is lazy, so nobody knows its shape yet: give the model a batch before training begins."


def _whole_beside_parts(parts: LiveParts) -> Iterator[str]:
    wrapped = tuple(f"{name}." for name, _, _ in parts.wrapped)
    for name, parameter in parts.parameters.items():
        if parameter.requires_grad and not spread.is_spread(parameter) and not name.startswith(wrapped):
            yield f"Parameter {name} is trained, and is not spread over the ranks as others are: every rank may have its own."
            return


def _of_spread(name: str, module: torch.nn.Module) -> Iterator[str]:
    for path, buffer in module.named_buffers():
        if spread.is_spread(buffer):
            yield f"Buffer {name}.{path} is spread over the ranks, which only parameters may be."
    for prefix, inner in module.named_modules():
        is_alike = not isinstance(inner, _NormBase) or isinstance(inner, torch.nn.SyncBatchNorm)
        if not is_alike and inner.training and inner.running_mean is not None:
            yield f"{name}.{prefix} ({type(inner).__name__}) counts statistics that every rank has for itself: use SyncBatchNorm."


def _of_wrapper(wrapper: DistributedDataParallel | None) -> Iterator[str]:
    for state in outside_state_dict.hook_states(wrapper):
        yield f"The communication hook of DistributedDataParallel has a state ({type(state).__name__}), and every rank its own."
    if wrapper is not None and wrapper.parameters_to_ignore:
        names = sorted(wrapper.parameters_to_ignore)
        yield f"DistributedDataParallel leaves out {', '.join(names[:3])}: every rank has its own."


def _of_optimizer(name: str, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    kind = type(optimizer)
    for method in ("state_dict", "load_state_dict"):
        if getattr(kind, method) is not getattr(torch.optim.Optimizer, method):
            yield f"{name} ({kind.__name__}) has a {method} of its own, so what its state is cannot be known."
            return


def _sizes(tree: Any) -> Iterator[int]:
    if isinstance(tree, torch.Tensor):
        yield tree.nbytes
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _sizes(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _sizes(value)
    else:
        yield len(tree) if isinstance(tree, (str, bytes)) else 8
