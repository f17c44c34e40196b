"""What training may change and no `state_dict` has.

These are parameters that an optimizer trains and no module among the parts has, `requires_grad`, buffers with `persistent=False`, attributes of
modules (module_attributes.py), parameter groups that were added, the state of a communication hook of DistributedDataParallel, and whether it sends
rank 0's buffers before the next forward pass. A file has it under OUTSIDE, by part, with an entry for each object. Files of earlier releases have
none: there all of it stays as it was built.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from recovery.errors import CheckpointStateError
from recovery.torch import buffers, module_attributes, module_names
from recovery.torch import gradients as gradients_of
from recovery.torch import payload as payloads
from recovery.torch.kept_generators import KeptGenerator, is_generator
from recovery.torch.module_attributes import ModuleAttributes

_logger = logging.getLogger("recovery.torch")

OUTSIDE = "outside_state_dict"
"""Where it stands in a payload."""
_UNCHANGING = (type(None), bool, int, float, str, bytes)
_GENERATOR = "recovery.generator"
"""Marks the state of a generator in that of a hook."""

Parts = Mapping[str, Sequence[Any]]
"""Objects by part, in the wrappers that they were given in."""
Group = list[gradients_of.Key]
"""The parameters of a group of an optimizer."""
Trained = Mapping[gradients_of.Key, torch.Tensor]
"""Parameters of all parts by their keys."""


def take(parts: Parts, attributes: ModuleAttributes | None = None) -> dict[str, list[dict[str, Any]]]:
    """All of it, as it is now; `attributes` as they were noted where the program had built them. Nothing is copied."""
    of_parts = trained(parts)
    taken = {
        part: [_taken(part, number, item, of_parts) for number, item in enumerate(items)]
        for part, items in parts.items()
    }
    for (part, number), kept in (attributes.take(parts) if attributes else {}).items():
        taken[part][number]["attributes"] = kept
    return {part: entries for part, entries in taken.items() if any(entries)}


def make_room(
    parts: Parts,
    saved: Mapping[str, Sequence[Mapping[str, Any]]],
    states: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Before anything is loaded: add the parameter groups that training had added, and give lazy and expanded buffers memory of their own.

    The program may add such a group again. `states` are what will be loaded, by part, where that is known.

    Raises:
        CheckpointStateError: an optimizer trains other parameters, or in another order: each would be given what belongs to another.
    """
    of_parts = trained(parts)
    for part, number, item in items_of(parts):
        if isinstance(item, torch.optim.Optimizer):
            groups, here = _entry(saved, part, number).get("groups", ()), groups_of(item, of_parts)
            if missing := added_groups(here, groups, of_parts):
                _add_groups(f"{part}[{number}]", item, missing, of_parts)
            elif groups and groups != here:
                raise _other_parameters(part, number, groups, here)
        elif isinstance(item, torch.nn.Module):
            of_part = (states or {}).get(part, ())
            buffers.make_room(item, of_part[number] if number < len(of_part) else {})


def put(parts: Parts, saved: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Put back what `take` has given: behind the states of all objects."""
    of_parts = trained(parts)
    for part, number, item in items_of(parts):
        entry, name = _entry(saved, part, number), f"{part}[{number}]"
        if entry.get("own") and isinstance(item, torch.optim.Optimizer):
            _put_own(own_parameters(part, number, of_parts), entry["own"], name)
        if "frozen" in entry and isinstance(item, torch.nn.Module):
            put_frozen(item, entry["frozen"], name)
            buffers.put(item, entry["buffers"], name)
            module_attributes.put(item, entry.get("attributes", {}), name)
        if "sends_buffers" in entry and (parallel := module_names.parallel(parts[part][number])) is not None:
            parallel.require_forward_param_sync = entry["sends_buffers"]
        hooks = hook_states(parts[part][number])
        for state, values in zip(hooks, entry.get("hooks", ()), strict=False):
            _put_hook(state, values, buffers.device_of(item))
        if "hooks" in entry and len(hooks) != len(entry["hooks"]):
            _logger.warning(
                "event=hook_state_not_restored part=%s the checkpoint has the states of %d communication hooks, and here are %d: register them "
                "before the state is loaded",
                name,
                len(entry["hooks"]),
                len(hooks),
            )


def frozen(item: torch.nn.Module) -> list[str]:
    """Plain names of the parameters whose `requires_grad` is False."""
    named = dict(item.named_parameters())
    names = module_names.plain_names(named)
    return [names[name] for name, parameter in named.items() if not parameter.requires_grad]


def put_frozen(item: torch.nn.Module, names: Sequence[str], part: str) -> None:
    """Set `requires_grad` of every parameter: False of these, True of all others."""
    named, off = dict(item.named_parameters()), set(names)
    plain = module_names.plain_names(named)
    changed = [name for name in named if named[name].requires_grad == (plain[name] in off)]
    for name in changed:
        named[name].requires_grad_(plain[name] not in off)
    if changed:
        _logger.info(
            "event=requires_grad_restored part=%s of %d parameters it is as it was saved, and not as it was built (%s, ...)",
            part,
            len(changed),
            changed[0],
        )


def hook_states(item: Any) -> list[Any]:
    """The states of a wrapped model's communication hooks that have one; a process group is none."""
    found = []
    while (inner := module_names.inside(item)) is not item:
        if isinstance(item, DistributedDataParallel):
            # Read in torch 2.13.
            hooks = getattr(item, "_comm_hooks", ())
            found += [
                state
                for _, state in hooks
                if not (_is_process_group(state) or isinstance(state, _UNCHANGING) or callable(state))
            ]
        item = inner
    return found


def report_unsaved(parts: Parts) -> None:
    """Before the first step: say what of such states a checkpoint cannot hold."""
    for part, items in parts.items():
        unsaved = [name for item in items for state in hook_states(item) for name in _unsaved(state)]
        if unsaved:
            _logger.warning(
                "event=hook_state_not_saved part=%s attributes=%s of the state of a communication hook are in no checkpoint, so a job that goes on has "
                "them as the program makes them: keep tensors, numbers, text, generators, lists and dicts there",
                part,
                ",".join(unsaved),
            )


def items_of(parts: Parts) -> Iterator[tuple[str, int, Any]]:
    """Each object without its wrappers, with its part and its number in it."""
    for part, items in parts.items():
        for number, item in enumerate(items):
            yield part, number, module_names.bare(item)


def _entry(saved: Mapping[str, Sequence[Mapping[str, Any]]], part: str, number: int) -> Mapping[str, Any]:
    entries = saved.get(part, ())
    return entries[number] if number < len(entries) else {}


def trained(parts: Parts) -> Trained:
    """Every parameter of these parts, by its key."""
    bare = {part: [module_names.bare(item) for item in items] for part, items in parts.items()}
    return dict(gradients_of.parameters(bare))


def _taken(part: str, number: int, item: Any, of_parts: Trained) -> dict[str, Any]:
    inner = module_names.bare(item)
    if isinstance(inner, torch.optim.Optimizer):
        own = {place: found.detach() for place, found in own_parameters(part, number, of_parts).items()}
        return {"groups": groups_of(inner, of_parts), "own": own}
    if not isinstance(inner, torch.nn.Module):
        return {}
    kept = {
        place.name: None if tensor is None else tensor.detach()
        for place in buffers.buffers_of(inner)
        if not place.persistent
        for tensor in [place.module._buffers[place.field]]  # noqa: SLF001 - torch has no public name for it
    }
    taken: dict[str, Any] = {"frozen": frozen(inner), "buffers": kept}
    if (parallel := module_names.parallel(item)) is not None:
        # A wrapper that is new sends them once more than one behind an evaluation, in `no_sync` or behind a backward pass that averaged nothing.
        taken["sends_buffers"] = parallel.require_forward_param_sync
    if hooks := hook_states(item):
        taken["hooks"] = [_taken_of_hook(state) for state in hooks]
    return taken


def _put_own(here: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], name: str) -> None:
    for place, value in saved.items():
        mine = here.get(place)
        if mine is None or (mine.shape, mine.dtype) != (value.shape, value.dtype):
            raise CheckpointStateError(
                field=name,
                reason=f"its parameter {place}, which no module has, was {value.dtype!s}{list(value.shape)}, and is "
                + ("none" if mine is None else f"{mine.dtype}{list(mine.shape)}"),
                next_step="Give it the parameters of the program that saved, in their order, or begin a new job.",
            )
        with torch.no_grad():
            mine.copy_(value)


# --- parameter groups --------------------------------------------------------------------------------------------------


def groups_of(optimizer: torch.optim.Optimizer, of_parts: Trained) -> list[Group]:
    """The parameters of each of its groups, by their keys among all parts."""
    keys = {id(parameter): key for key, parameter in of_parts.items()}
    return [[keys[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def own_parameters(part: str, number: int, of_parts: Trained) -> dict[str, torch.Tensor]:
    """Those that an optimizer trains and no module of these parts has, by their number in it: a temperature, the centres of a loss, master weights."""
    return {key[2]: parameter for key, parameter in of_parts.items() if key[:2] == (part, number)}


def added_groups(
    here: Sequence[Group], saved: Sequence[Group], known: Container[gradients_of.Key]
) -> list[Group]:
    """The groups that were saved behind those that are here, if a start could add them: of parameters that it knows, and in no group yet."""
    if [list(group) for group in saved[: len(here)]] != list(here):
        return []
    taken = {key for group in here for key in group}
    added = [list(group) for group in saved[len(here) :]]
    return added if all(key in known and key not in taken for group in added for key in group) else []


def _other_parameters(
    part: str, number: int, saved: Sequence[Group], here: Sequence[Group]
) -> CheckpointStateError:
    differing = itertools.zip_longest(itertools.chain(*saved), itertools.chain(*here))
    first = next((pair for pair in differing if pair[0] != pair[1]), (None, None))
    there, now = ("none" if key is None else f"{key[0]}[{key[1]}].{key[2]}" for key in first)
    return CheckpointStateError(
        field=f"{part}[{number}]",
        reason=f"its groups train {[len(group) for group in here]} parameters, those of the checkpoint {[len(group) for group in saved]}; the first that "
        f"differs is {now}, and was {there}",
        next_step="Give it the parameters of the program that saved, in their order, or begin a new job.",
    )


def _add_groups(
    name: str, optimizer: torch.optim.Optimizer, groups: Sequence[Group], of_parts: Trained
) -> None:
    named = any("param_names" in group for group in optimizer.param_groups)
    for group in groups:
        # Its options and the names of its parameters come with the state.
        params = [(key[2], of_parts[key]) if named else of_parts[key] for key in group]
        optimizer.add_param_group({"params": params})
    _expect_again(name, optimizer, [group["params"] for group in optimizer.param_groups[-len(groups) :]])
    _logger.info(
        "event=param_groups_added part=%s %d groups of the checkpoint that training had added, with %d parameters",
        name,
        len(groups),
        sum(map(len, groups)),
    )


def _expect_again(name: str, optimizer: torch.optim.Optimizer, added: list[list[torch.Tensor]]) -> None:
    """Let a program that goes on in the epoch at whose begin it adds a group add it once more: it is there already."""
    add, expected = optimizer.add_param_group, [[id(one) for one in params] for params in added]

    def add_if_new(group: dict[str, Any]) -> None:
        given = group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        ids = [id(one[1] if isinstance(one, tuple) else one) for one in given]
        if ids not in expected:
            add({**group, "params": given})
            return
        expected.remove(ids)
        _logger.info(
            "event=param_group_kept part=%s a group of %d parameters is added again: it has come with the checkpoint, and stays as it is",
            name,
            len(ids),
        )

    setattr(optimizer, "add_param_group", add_if_new)  # noqa: B010 - of this object


# --- communication hooks -----------------------------------------------------------------------------------------------


def _is_process_group(value: Any) -> bool:
    return distributed.is_available() and isinstance(value, distributed.ProcessGroup)


def _attributes(state: Any) -> dict[str, Any] | None:
    """What an object holds, without process groups; None: nobody knows."""
    if type(state) is dict:
        found = state
    else:
        slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
        found = {name: getattr(state, name) for name in slots if name[:2] != "__" and hasattr(state, name)}
        found |= getattr(state, "__dict__", {})
        if not found:
            return None
    return {name: value for name, value in found.items() if not _is_process_group(value)}


def _unsaved(state: Any) -> list[str]:
    values, kind = _attributes(state), type(state).__name__
    if values is None:
        return [kind]
    return [f"{kind}.{name}" for name, value in values.items() if not _is_safe(value)]


def _is_safe(value: Any) -> bool:
    if is_generator(value):
        return True
    try:
        payloads.refuse_unsafe("", value)
    except CheckpointStateError:
        return False
    return True


def _taken_of_hook(state: Any) -> dict[str, Any]:
    return {
        name: {_GENERATOR: KeptGenerator(value).state_dict()} if is_generator(value) else value
        for name, value in (_attributes(state) or {}).items()
        if _is_safe(value)
    }


def _put_hook(state: Any, values: Mapping[str, Any], device: torch.device) -> None:
    here = _attributes(state) or {}
    for name, value in values.items():
        mine = here.get(name)
        if type(value) is dict and _GENERATOR in value and is_generator(mine):
            KeptGenerator(mine).load_state_dict(value[_GENERATOR])
            continue
        on_device = _on(value, mine.device if isinstance(mine, torch.Tensor) else device)
        if type(state) is dict:
            state[name] = on_device
        else:
            setattr(state, name, on_device)


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if type(value) is dict:
        return {key: _on(inner, device) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on(inner, device) for inner in value)
    return copy.deepcopy(value)
