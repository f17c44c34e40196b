"""Names of a module's entries as its author knows them: without the wrappers of DistributedDataParallel and torch.compile.

`torch.compile` puts `_orig_mod` into the name of everything inside what it wraps, so whether and what a program compiles would decide what its
checkpoints' tensors are called. Files of earlier releases have it in them, and are read.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from recovery.torch import payload as payloads

_WRAPPED = "_orig_mod"


def bare(item: Any) -> Any:
    """The object inside whatever DistributedDataParallel and torch.compile have put around it."""
    while (inner := inside(item)) is not item:
        item = inner
    return item


def inside(item: Any) -> Any:
    """What the outermost of these wrappers holds; the object itself where it is none. A module of the author's may have a part of the same name."""
    if isinstance(item, DistributedDataParallel):
        return item.module
    return item._orig_mod if is_compiled(item) else item  # noqa: SLF001 - torch has no public name for it


def parallel(item: Any) -> DistributedDataParallel | None:
    """The DistributedDataParallel among its wrappers."""
    while not isinstance(item, DistributedDataParallel):
        inner = inside(item)
        if inner is item:
            return None
        item = inner
    return item


def plain(name: str) -> str:
    """`body._orig_mod.weight` as `body.weight`."""
    return ".".join(part for part in name.split(".") if part != _WRAPPED) if _WRAPPED in name else name


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Each of a module's names, plain; as they are where two would then be one: the author has given one of them himself."""
    plains = {name: plain(name) for name in names}
    return plains if len(set(plains.values())) == len(plains) else {name: name for name in plains}


def state_of(item: Any) -> Any:
    """What its `state_dict` gives, under plain names where it is a module."""
    state = item.state_dict()
    return _renamed(state) if isinstance(item, torch.nn.Module) else state


def as_named_by(item: Any, state: Any) -> Any:
    """The same state under the names that the `load_state_dict` of this object knows."""
    if not isinstance(item, torch.nn.Module) or not any(
        _WRAPPED in name.split(".") for name, _ in item.named_modules()
    ):
        return state
    names = {plain(name): name for name in item.state_dict()}
    there = {key: names.get(key, key) for key in state}
    return _with_names(state, there) if len(set(there.values())) == len(there) else state


def of_file(payload: Mapping[str, Any], objects: Mapping[str, list[Any]] | None = None) -> Mapping[str, Any]:
    """A payload with plain names throughout, whichever release wrote it: gradients and shards are called as the state that they belong to.

    Args:
        payload: of a file.
        objects: that it will be loaded into, by part: what is no module keeps the names that it gave. None: nobody knows them.
    """
    names = {
        (part, number): of_state
        for part, states in payload["parts"].items()
        for number, state in enumerate(states)
        if _may_be_module(objects, part, number) and (of_state := _plain_keys(state))
    }
    if not names:
        return payload
    parts = {
        part: [_with_names(state, names.get((part, number), {})) for number, state in enumerate(states)]
        for part, states in payload["parts"].items()
    }
    renamed = {**payload, "parts": parts}
    if "gradients" in payload:
        renamed["gradients"] = {
            _of_gradient(key, names): gradient for key, gradient in payload["gradients"].items()
        }
    if payloads.SHARDS in payload:
        shards = payload[payloads.SHARDS]
        tensors = [{**entry, "at": _place(entry["at"], names)} for entry in shards["tensors"]]
        renamed[payloads.SHARDS] = {**shards, "tensors": tensors}
    return renamed


def _may_be_module(objects: Mapping[str, list[Any]] | None, part: str, number: int) -> bool:
    known = [] if objects is None else objects.get(part, [])[number : number + 1]
    return not known or isinstance(known[0], torch.nn.Module)


_Names = Mapping[tuple[str, int], Mapping[Any, Any]]
"""Of each state whose entries are renamed: by part and number in it."""


def _of_gradient(key: tuple[str, int, str], names: _Names) -> tuple[str, int, str]:
    part, number, name = key
    return part, number, names.get((part, number), {}).get(name, name)


def _place(at: tuple[Any, ...], names: _Names) -> tuple[Any, ...]:
    """Of a shard map's entry: a gradient's place has its whole key as one step."""
    if at[0] == "gradients":
        return (at[0], _of_gradient(at[1], names), *at[2:])
    if at[0] != "parts":
        return at
    _, part, number, *inside = at
    if not inside:
        return at
    return ("parts", part, number, names.get((part, number), {}).get(inside[0], inside[0]), *inside[1:])


def _renamed(state: Any) -> Any:
    return _with_names(state, _plain_keys(state))


def _plain_keys(state: Any) -> dict[Any, Any]:
    """Each of its keys, plain; empty: they stay as they are, since all are plain, or the author has an entry of such a name himself."""
    if not isinstance(state, dict) or not any(isinstance(key, str) and _WRAPPED in key for key in state):
        return {}
    names = {key: plain(key) if isinstance(key, str) else key for key in state}
    return names if len(set(names.values())) == len(names) else {}


def _with_names(state: Any, names: Mapping[Any, Any]) -> Any:
    if not names:
        return state
    renamed = copy.copy(state)
    renamed.clear()
    renamed.update((names[key], value) for key, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        # torch looks there for the version of each inner module, by its name.
        inner = {name for name in names.values() if isinstance(name, str)}
        renamed._metadata = _versions(versions, inner)  # noqa: SLF001 - as torch's own state_dict
    return renamed


def _versions(versions: Mapping[str, Any], names: Iterable[str]) -> OrderedDict[str, Any]:
    """Of the inner modules: under their plain names, and under those by which the entries are known."""
    known = {plain(prefix): prefix for name in names for prefix in _prefixes(name)}
    renamed: OrderedDict[str, Any] = OrderedDict()
    for name, version in versions.items():
        renamed[plain(name)] = version
        renamed[known.get(plain(name), plain(name))] = version
    return renamed


def _prefixes(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def is_compiled(item: Any) -> bool:
    """A program that has compiled something has imported what compiles."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    return module is not None and isinstance(item, module.OptimizedModule)
