"""What DistributedDataParallel keeps alike on all ranks, in short: where ranks differ in it, one of them holds what no training has made.

Compared are the parameters that it averages gradients of, and what optimizers keep of these. Not compared: buffers and frozen parameters, which a
rank may have of its own; parts that are named as each rank's (`per_rank`); and all of it where the ranks are to differ: an optimizer or a
communication hook that averages now and then, a group of processes that is not the whole world, weights that were frozen when the wrapper was
made and are trained since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from recovery.core.message_fields import FINGERPRINTS_MAX
from recovery.torch import fingerprint, module_names
from recovery.torch.outside_state_dict import Parts

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_EXACT_HOOKS = {
    f"{_HOOKS}default_hooks": ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"),
    f"{_HOOKS}powerSGD_hook": ("powerSGD_hook", "batched_powerSGD_hook"),
}
"""After these every rank has the same gradients. What wraps another hook does as that one does, which nobody can see."""
_NAME_CHARS_MAX = 100
Named = tuple[str, torch.Tensor]


class Replicas:
    """Of one training."""

    def __init__(self) -> None:
        """Nothing was looked at."""
        self._apart = False
        """Ranks train some weights each for itself: by clipping their norm, all the others differ too, from then on."""

    def fingerprints(self, parts: Parts) -> dict[str, str]:
        """SHA-256 (hex) of at most 64 groups of tensors, each by the names of its first and last one; empty: nothing is to be compared."""
        self._apart = self._apart or any(_trains_apart(parallel) for _, parallel in _wrapped(parts))
        if self._apart or not _are_alike(parts):
            return {}
        trained = dict(_trained(parts))
        return _grouped([*trained.items(), *_states(parts, trained)])


def _wrapped(parts: Parts) -> Iterator[tuple[str, DistributedDataParallel]]:
    for part, items in parts.items():
        for number, item in enumerate(items):
            if (parallel := module_names.parallel(item)) is not None:
                yield f"{part}[{number}]", parallel


def _are_alike(parts: Parts) -> bool:
    """Does training keep the ranks alike, as far as can be seen?"""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    optimizers = (
        item for items in parts.values() for item in items if isinstance(item, torch.optim.Optimizer)
    )
    if any(type(one).__module__.startswith("torch.distributed.") for one in optimizers):
        return False
    for _, parallel in _wrapped(parts):
        hooks = [hook for hook, _ in getattr(parallel, "_comm_hooks", ())]
        is_whole = parallel.process_group.size() == distributed.get_world_size()
        if not is_whole or not all(map(_is_exact, hooks)):
            return False
    return True


def _is_exact(hook: object) -> bool:
    return getattr(hook, "__qualname__", "") in _EXACT_HOOKS.get(getattr(hook, "__module__", ""), ())


def _trains_apart(parallel: DistributedDataParallel) -> bool:
    """Are there more trained parameters than it averages gradients of?"""
    trained = sum(
        tensor.requires_grad and name not in parallel.parameters_to_ignore
        for name, tensor in parallel.module.named_parameters()
    )
    # Read in torch 2.13, which has no public name for it.
    noted = parallel._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001 - see above
    return bool(trained > int(noted["num_parameter_tensors"]))


def _trained(parts: Parts) -> Iterator[Named]:
    """In the order of the models."""
    for name, parallel in _wrapped(parts):
        for own, tensor in parallel.module.named_parameters():
            if tensor.requires_grad and own not in parallel.parameters_to_ignore and _is_plain(tensor):
                yield f"{name}.{module_names.plain(own)}", tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    """Are its bits in one place? Not of one that is spread, sparse, quantized or of a class of its own."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return (
        type(tensor) in kinds
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
    )


def _states(parts: Parts, trained: Mapping[str, torch.Tensor]) -> Iterator[Named]:
    """What the optimizers keep of these, tensor by tensor, in their order."""
    for part, items in parts.items():
        for number, item in enumerate(items):
            states = getattr(item, "state", {}) if isinstance(item, torch.optim.Optimizer) else {}
            for name, parameter in trained.items():
                state = states.get(parameter)
                kept = state if isinstance(state, dict) else {}
                for key in sorted(kept, key=str):
                    value = kept[key]
                    if isinstance(value, torch.Tensor) and _is_plain(value):
                        yield f"{part}[{number}] {key} of {name}", value


def _grouped(tensors: list[Named]) -> dict[str, str]:
    sums = fingerprint.sums_of([tensor for _, tensor in tensors])
    lines = [
        f"{name} {tuple(tensor.shape)} {tensor.dtype} {of_it}\n"
        for (name, tensor), of_it in zip(tensors, sums, strict=True)
    ]
    size = -(-len(tensors) // FINGERPRINTS_MAX)
    found: dict[str, str] = {}
    for begin in range(0, len(tensors), max(1, size)):
        group = tensors[begin : begin + size]
        # The ends of long names tell them apart.
        first, last = (name[-_NAME_CHARS_MAX:] for name in (group[0][0], group[-1][0]))
        named = first if len(group) == 1 else f"{first} to {last}"
        digest = hashlib.sha256("".join(lines[begin : begin + size]).encode(errors="backslashreplace"))
        found[f"{named} ({begin})" if named in found else named] = digest.hexdigest()
    return found
