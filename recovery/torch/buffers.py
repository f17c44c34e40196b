"""Buffers of modules, in the place that each has: a start may have built one lazily, expanded, or of another shape than training has left it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from recovery.torch import module_names

_logger = logging.getLogger("recovery.torch")


class BufferPlace(NamedTuple):
    """Where a module keeps a buffer."""

    name: str
    module: torch.nn.Module
    field: str
    persistent: bool


def buffers_of(item: torch.nn.Module) -> Iterator[BufferPlace]:
    """The buffers of a module and of those in it, under plain names, with those that are None."""
    for prefix, module in item.named_modules():
        of_module = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
        for field in module._buffers:  # noqa: SLF001 - as above
            name = module_names.plain(f"{prefix}.{field}" if prefix else field)
            yield BufferPlace(name, module, field, field not in of_module)


def write_buffer(holder: dict[str, torch.Tensor | None], field: str, value: torch.Tensor | None) -> None:
    """Give a buffer this value: into the tensor that is there, or in its place where that has no room for it of its own (`expand`)."""
    mine = holder[field]
    if value is None:
        holder[field] = None
    elif (
        mine is None
        or is_lazy(mine)
        or (mine.shape, mine.dtype) != (value.shape, value.dtype)
        or _overlaps(mine)
    ):
        holder[field] = value.to(value.device if mine is None else mine.device, copy=True)
    else:
        with torch.no_grad():
            mine.copy_(value)


def make_room(item: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Before this state is loaded: give lazy buffers its shapes, and expanded ones memory of their own."""
    for place in buffers_of(item):
        holder = place.module._buffers  # noqa: SLF001 - torch has no public name for it
        tensor = holder[place.field]
        if tensor is not None and is_lazy(tensor):
            _materialize(tensor, state.get(place.name))
        elif tensor is not None and _overlaps(tensor):
            holder[place.field] = tensor.contiguous()


def put(item: torch.nn.Module, saved: Mapping[str, torch.Tensor | None], part: str) -> None:
    """Put back the values of those that are not persistent, by plain name; `part` is for people."""
    places = {place.name: place for place in buffers_of(item) if not place.persistent}
    modules = {module_names.plain(name): module for name, module in item.named_modules()}
    for name, value in saved.items():
        prefix, _, field = name.rpartition(".")
        place = places.get(name)
        if place is not None:
            write_buffer(place.module._buffers, place.field, value)  # noqa: SLF001 - torch has no public name for it
        elif prefix in modules and not hasattr(modules[prefix], field):
            # The first step makes it, where it is not there yet.
            here = None if value is None else value.to(device_of(item), copy=True)
            modules[prefix].register_buffer(field, here, persistent=False)
        else:
            _logger.warning(
                "event=buffer_not_restored part=%s buffer=%s it is in the checkpoint, and is no buffer with persistent=False here",
                part,
                name,
            )


def _materialize(buffer: Any, saved: Any) -> None:
    """Only torch's own lazy modules do that where they are loaded."""
    if isinstance(saved, torch.Tensor) and not is_lazy(saved):
        buffer.materialize(saved.shape, buffer.device, saved.dtype)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Do several of its elements lie in one place, as those of `expand`? torch writes into no such tensor."""
    return tensor.layout is torch.strided and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def device_of(item: Any) -> torch.device:
    """Of a module's first parameter."""
    first = next(item.parameters(), None) if isinstance(item, torch.nn.Module) else None
    return torch.device("cpu") if first is None else first.device
