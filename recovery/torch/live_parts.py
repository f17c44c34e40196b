"""The parts of a training state, sorted by how live rollback treats them, without the wrappers that belong to one world."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from recovery.torch import gradients as gradients_of
from recovery.torch import live_shards, module_names, spread, unreduced_gradients
from recovery.torch.module_attributes import ModuleAttributes
from recovery.torch.passes import Passes


class Wrapped(NamedTuple):
    """A model in DistributedDataParallel. The wrapper is there as long as its world: nothing of ours keeps it."""

    name: str
    wrapper: weakref.ref[DistributedDataParallel]
    compiled: bool
    """torch.compile traces its forward pass."""


@dataclass(frozen=True)
class Buffer:
    """A buffer. One that a module does not save (`persistent=False`) belongs to the state where training has changed it, and is built again elsewhere."""

    name: str
    holder: dict[str, torch.Tensor | None]
    field: str
    alike: bool
    """DistributedDataParallel gives every rank that of rank 0 before each forward pass, or it is an average of one of which it does."""
    persistent: bool = True

    @property
    def tensor(self) -> torch.Tensor:
        """As it is now."""
        tensor = self.holder[self.field]
        assert tensor is not None, "buffers without a tensor are not listed"
        return tensor


class LiveParts:
    """Modules, optimizers, loaders and everything else, by names like `model[0]`."""

    def __init__(
        self,
        parts: Mapping[str, Sequence[Any]],
        *,
        gradients: bool,
        attributes: ModuleAttributes | None = None,
    ) -> None:
        """Sort them.

        Args:
            parts: by the name of the part, as the training state was given them.
            gradients: those that are there at a step's end belong to the state.
            attributes: of these parts as the program has built them; None: as they are now.
        """
        self.has_gradients = gradients
        self._attributes = attributes or ModuleAttributes(parts)
        self.gradients_are_alike = False
        """Those that are there were added over the ranks, as far as the last boundary or the checkpoint that was loaded says."""
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.loaders: dict[str, Passes] = {}
        self.others: dict[str, Any] = {}
        self.wrapped: list[Wrapped] = []
        self._bare: dict[str, list[Any]] = {}
        self._of_fsdp: list[Any] | None = None
        self._structure = ""
        """Once parts were let go: what it was."""
        for part, items in parts.items():
            names = [f"{part}[{number}]" for number in range(len(items))]
            self._bare[part] = [self._unwrap(name, item) for name, item in zip(names, items, strict=True)]
            for name, item in zip(names, self._bare[part], strict=True):
                self._sort(name, item)
        self._show_own_parts()
        self.parameters: dict[str, torch.Tensor] = dict(self._find_parameters())
        self.replicas = live_shards.replicas(self.parameters.values())
        """The ranks that hold what this one holds, where parameters are spread over the ranks; empty: they are not."""
        self.buffers: list[Buffer] = list(self._find_buffers())
        self._built_groups = self._group_sizes()

    def _unwrap(self, name: str, item: Any) -> Any:
        compiled = False
        while (inner := module_names.inside(item)) is not item:
            if isinstance(item, DistributedDataParallel):
                self.wrapped.append(Wrapped(name, weakref.ref(item), compiled))
            else:
                # What torch.compile made of it. In the module's own names it is the same model.
                compiled = True
            item = inner
        return item

    def _sort(self, name: str, item: Any) -> None:
        if isinstance(item, torch.nn.Module):
            self.modules[name] = item
        elif isinstance(item, torch.optim.Optimizer):
            self.optimizers[name] = item
        elif isinstance(item, Passes):
            self.loaders[name] = item
        else:
            self.others[name] = item

    def _show_own_parts(self) -> None:
        for module in self.modules.values():
            live_shards.show_own_parts(module)

    def _find_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for (part, number, name), parameter in gradients_of.parameters(self._bare):
            yield f"{part}[{number}].{name}", parameter

    def _find_buffers(self) -> Iterator[Buffer]:
        wrapped = {name: wrapper for name, reference, _ in self.wrapped if (wrapper := reference())}
        seen: set[tuple[int, str]] = set()
        for item_name, item in self.modules.items():
            from_rank_0 = (
                wrapped[item_name].broadcast_buffers
                if item_name in wrapped
                else isinstance(item, AveragedModel) and bool(wrapped)
            )
            for prefix, module in item.named_modules():
                for field, tensor in module._buffers.items():  # noqa: SLF001 - the dict itself: a buffer may be another tensor later
                    # A lazy one comes with its first pass.
                    if tensor is not None and not is_lazy(tensor) and (id(module), field) not in seen:
                        seen.add((id(module), field))
                        alike = from_rank_0 or isinstance(module, torch.nn.SyncBatchNorm)
                        name = f"{item_name}.{prefix}.{field}" if prefix else f"{item_name}.{field}"
                        persistent = field not in module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
                        yield Buffer(name, module._buffers, field, alike, persistent)  # noqa: SLF001 - as above

    def follow_keys(self, seed: int) -> None:
        """Let what loaders draw follow from this seed: another process could then go on from their positions."""
        for number, loader in enumerate(self.loaders.values()):
            loader.follow_keys(seed, number)

    def frozen(self) -> list[str]:
        """Parameters whose `requires_grad` is False."""
        return [name for name, parameter in self.parameters.items() if not parameter.requires_grad]

    def freeze(self, names: Iterable[str]) -> None:
        """Let these be the parameters whose `requires_grad` is False."""
        off = frozenset(names)
        for name, parameter in self.parameters.items():
            if parameter.requires_grad == (name in off):
                parameter.requires_grad_(name not in off)

    def unreduced(self) -> str:
        """A parameter whose gradient was kept from being added over the ranks, in words; empty: there is none."""
        if self._of_fsdp is None:
            self._of_fsdp = [
                group for module in self.modules.values() for group in unreduced_gradients.groups_of(module)
            ]
        return unreduced_gradients.first(self._of_fsdp)

    def placed_otherwise(self) -> str:
        """A parameter that is spread over the ranks and whose gradient is in another way: its name; else empty."""
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            if gradient is None or not spread.is_spread(gradient):
                continue
            if not live_shards.is_placed_like(gradient, parameter):
                return name
        return ""

    def lost_position(self) -> str:
        """A loader from whose position another process could not go on, and why; else empty."""
        for name, loader in self.loaders.items():
            if why_not := loader.why_not_derivable:
                return f"{name}: {why_not}"
        return ""

    def takes_buffers_of_rank_0(self) -> bool:
        """Does DistributedDataParallel give every rank the buffers of rank 0?"""
        return any(wrapper.broadcast_buffers for _, reference, _ in self.wrapped if (wrapper := reference()))

    def device(self) -> torch.device:
        """Of the parameters that are on no CPU, else the CPU."""
        devices = [parameter.device for parameter in self.parameters.values()]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def has_other_tensors(self) -> str:
        """A parameter that was put in the place of another, or a buffer that came or went, since these parts were sorted; else empty."""
        if self.replicas and self._structure:
            # They were let go of: there are none any more that another could be put into.
            return ""
        self._show_own_parts()
        now = dict(self._find_parameters())
        for name, parameter in self.parameters.items():
            if now.get(name) is not parameter:
                return f"parameter {name} is another tensor than at the begin"
        if len(now) != len(self.parameters):
            return "its models or optimizers have more parameters than at the begin"
        if self._group_sizes() != self._built_groups:
            return "the parameter groups of its optimizers are others than at the begin"
        before, here = (
            {buffer.name for buffer in self.buffers},
            {buffer.name for buffer in self._find_buffers()},
        )
        if before != here:
            return f"the buffers of its models are others than at the begin: {min(before ^ here)}"
        return ""

    def changed_attribute(self) -> str:
        """An attribute of a module that training has changed, in words; empty: there is none that a rank may have for itself."""
        return self._attributes.why_not_live(self._bare)

    def build_attributes(self) -> None:
        """Let attributes of modules be what the program has built."""
        self._attributes.reset(self._bare)

    def structure(self) -> str:
        """SHA-256 (hex) of what must be alike in the rank that gives this state and the ranks that take it."""
        if self._structure:
            return self._structure
        lines = [f"gradients {self.has_gradients}"]
        for part, items in self._bare.items():
            lines += [f"{part} {number} {type(item).__qualname__}" for number, item in enumerate(items)]
        lines += [_described(name, parameter) for name, parameter in self.parameters.items()]
        lines += [
            _described(buffer.name, buffer.tensor) if buffer.persistent else buffer.name
            for buffer in self.buffers
        ]
        lines += [f"{name} {sizes}" for name, sizes in self._group_sizes().items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _group_sizes(self) -> dict[str, list[int]]:
        return {
            name: [len(group["params"]) for group in optimizer.param_groups]
            for name, optimizer in self.optimizers.items()
        }

    def let_go(self) -> None:
        """Keep models and optimizers only: data sets, and what belongs to a world that is over, are built again.

        A module whose parameters are spread over the ranks knows the groups of its world, so of it the parameters are kept only.
        """
        self._structure = self.structure()
        self.loaders, self.others, self.wrapped = {}, {}, []
        if self.replicas:
            self.modules, self._bare, self._of_fsdp = {}, {}, []
        self._bare = {
            part: [item for item in items if isinstance(item, (torch.nn.Module, torch.optim.Optimizer))]
            for part, items in self._bare.items()
        }


def _described(name: str, tensor: torch.Tensor) -> str:
    if is_lazy(tensor):
        return f"{name} lazy"
    return f"{name} {tuple(tensor.shape)} {tensor.dtype}{live_shards.described(tensor)}"
