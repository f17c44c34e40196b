"""Attributes of modules that training changes: no `state_dict` has them, and a start has them as the program builds them.

Kept are the mode of each module (`training`: statistics that were frozen by `eval()`), and numbers, text and tensors that are no buffers, in lists and dicts
too: the `p` of a Dropout, the `momentum` of a normalisation, an average. Only what has changed since the program built it is in a checkpoint. Of a module
of which something else has changed as well none of it is kept but its mode: a flag without the table that it speaks of would do harm. That is named.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from recovery.torch import module_names
from recovery.torch.attribute_values import (
    NotPlainError,
    Opaque,
    Same,
    copied,
    is_on_device,
    is_users,
    mark,
    moved,
)

_logger = logging.getLogger("recovery.torch")

Parts = Mapping[str, Sequence[Any]]
"""Objects by part, in the wrappers that they were given in."""
Kept = dict[str, dict[str, dict[str, Any]]]
"""By the plain name of the module and the attribute: its value, and whether that was on a device."""

_MODE = "training"
_OF_TORCH = frozenset(vars(torch.nn.Module())) - {_MODE}
_OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1)]))) | {"_opt_called"}
"""With what a schedule sets there."""
_SHOWN = 3

_Holder = tuple[str, int, str]
"""Part, number in it, and the plain name of a module."""


class ModuleAttributes:
    """Of the modules and optimizers of one state, noted where the program has built them."""

    def __init__(self, parts: Parts, *, has_roots: bool = True) -> None:
        """Nothing has changed yet. `has_roots`: of a part's outermost module too."""
        self._has_roots, self._said = has_roots, set[str]()
        self._built = self._marks(parts)
        self._values = {
            (holder, name): value
            for holder, found in self._holders(parts)
            for name, value in _attributes(found)
            if type(value) in (bool, int, float, str)
        }

    def take(self, parts: Parts) -> dict[tuple[str, int], Kept]:
        """What has changed, by part and number in it. Nothing is copied. What has changed and is not kept is named, each once."""
        taken: dict[tuple[str, int], Kept] = {}
        left_out: list[str] = []
        holders = dict(self._holders(parts))
        for holder, changed in self._changed(parts):
            part, number, prefix = holder
            kept, not_kept = _kept(holders[holder], changed)
            left_out += [_place(holder, name) for name in not_kept]
            if kept:
                taken.setdefault((part, number), {})[prefix] = kept
        if left_out := [place for place in left_out if place not in self._said]:
            self._said.update(left_out)
            _logger.warning(
                "event=attributes_not_kept attributes=%s (%d in all) reason='training changes them, and they are no numbers, text or tensors, or "
                "large ones, or of a module of which such a one changes': a job that goes on has them as the program builds them. What the steps "
                "depend on is to be a buffer, a submodule, or a part of its own: TrainState(..., teacher=teacher)",
                ",".join(left_out[:_SHOWN]),
                len(left_out),
            )
        return taken

    def why_not_live(self, parts: Parts) -> str:
        """What no other rank can be given, a clause: it may be each rank's own. A whole model in another mode will be told so again; empty: nothing."""
        roots = {holder[:2]: found for holder, found in self._holders(parts) if not holder[2]}
        for holder, changed in self._changed(parts):
            root = holder[:2]
            for name in changed:
                is_told = name == _MODE and getattr(roots.get(root), _MODE, None) != self._values.get(
                    ((*root, ""), _MODE)
                )
                if not is_told:
                    return f"{_place(holder, name)} was changed, which is in checkpoints only"
        return ""

    def reset(self, parts: Parts) -> None:
        """Make numbers and modes what the program had built, for objects that it will be given again."""
        holders = dict(self._holders(parts))
        for holder, changed in self._changed(parts):
            for name in changed:
                if (holder, name) in self._values:
                    vars(holders[holder])[name] = self._values[holder, name]

    def _holders(self, parts: Parts) -> Iterator[tuple[_Holder, Any]]:
        for part, items in parts.items():
            for number, item in enumerate(map(module_names.bare, items)):
                if isinstance(item, torch.optim.Optimizer):
                    if type(item).__module__.partition(".")[0] != "torch":
                        yield (part, number, ""), item
                elif isinstance(item, torch.nn.Module):
                    for prefix, module in item.named_modules():
                        if (prefix or self._has_roots) and not isinstance(module, torch.jit.ScriptModule):
                            yield (part, number, module_names.plain(prefix)), module

    def _marks(self, parts: Parts) -> dict[_Holder, dict[str, Any]]:
        known = ids_of(module_names.bare(item) for items in parts.values() for item in items)
        # Each layer of a model may hold one configuration.
        objects: dict[int, Any] = {}
        return {
            holder: {
                name: marked
                for name, value in _attributes(found)
                if (marked := _marked(value, known, objects)) is not None
            }
            for holder, found in self._holders(parts)
        }

    def _changed(self, parts: Parts) -> Iterator[tuple[_Holder, list[str]]]:
        """Of each module that was there when the program had built it."""
        for holder, marks in self._marks(parts).items():
            built = self._built.get(holder)
            if built is None:
                continue
            if names := [
                name for name, marked in marks.items() if name not in built or built[name] != marked
            ]:
                yield holder, names


def put(item: torch.nn.Module, saved: Kept, part: str) -> None:
    """Put back what `take` has given of this module."""
    modules = {module_names.plain(name): module for name, module in item.named_modules()}
    device = next((parameter.device for parameter in item.parameters()), torch.device("cpu"))
    found = [
        (prefix, name, of)
        for prefix, names in saved.items()
        for name, of in names.items()
        if prefix in modules
    ]
    for prefix, name, of in found:
        # No property or `__setattr__` of the user's runs.
        vars(modules[prefix])[name] = moved(of["value"], device if of["on_device"] else torch.device("cpu"))
    if found:
        _logger.info(
            "event=attributes_restored part=%s %d attributes are as they were saved, and not as they were built (%s, ...)",
            part,
            len(found),
            ".".join(filter(None, found[0][:2])),
        )


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    of_torch = _OF_TORCH if isinstance(holder, torch.nn.Module) else _OF_OPTIMIZERS
    return ((name, value) for name, value in vars(holder).items() if name not in of_torch)


def _kept(holder: Any, changed: Sequence[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What a checkpoint can hold of these attributes, and the names of those that it does not."""
    kept, not_kept = {}, []
    for name in changed:
        value = vars(holder)[name]
        try:
            kept[name] = {"value": copied(value), "on_device": is_on_device(value)}
        except NotPlainError:
            not_kept.append(name)
    if not isinstance(holder, torch.nn.Module):
        # What an optimizer says of itself may speak of what only its first step makes.
        return {}, list(changed)
    if not_kept:
        not_kept += [name for name in kept if name != _MODE]
        kept = {name: of for name, of in kept.items() if name == _MODE}
    return kept, not_kept


def _marked(value: Any, known: frozenset[int], objects: dict[int, Any]) -> Any:
    """What differs once it has changed; None: it has nothing of its own, or is what a step has computed. `objects` are marks of users', by id."""
    if type(value) in (bool, int, float, str):
        return type(value), value
    if is_users(value) and not isinstance(value, torch.nn.Module):
        if id(value) not in objects:
            objects[id(value)] = Opaque((Same(value), mark(vars(value))))
        return objects[id(value)]
    inside = list(_inside(value))
    tensors = [one for one in inside if isinstance(one, torch.Tensor)]
    if any(id(tensor) in known or tensor.grad_fn is not None for tensor in tensors):
        return None
    has_modules = any(isinstance(one, torch.nn.Module) for one in inside)
    return of_modules_in(value, known) if has_modules else mark(value)


def of_modules_in(value: Any, known: frozenset[int]) -> Opaque | None:
    """What differs once the weights of modules in this value have changed, but for tensors of these ids; None: there are none."""
    modules = (one for one in _inside(value) if isinstance(one, torch.nn.Module))
    tensors = [tensor for tensor in _tensors_of(modules) if id(tensor) not in known]
    return Opaque(tuple(map(mark, tensors))) if tensors else None


def ids_of(items: Iterable[Any]) -> frozenset[int]:
    """Of the tensors of these modules."""
    return frozenset(map(id, _tensors_of(items)))


def _inside(value: Any) -> Iterator[Any]:
    """It, and what lists and dicts hold, two deep."""
    yield value
    for _ in range(2):
        several = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
        value = list(itertools.islice(several, 1_000))
        yield from value


def _tensors_of(items: Iterable[Any]) -> Iterator[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.nn.Module):
            yield from itertools.chain(item.parameters(), item.buffers())


def _place(holder: _Holder, name: str) -> str:
    part, number, prefix = holder
    return ".".join(filter(None, (f"{part}[{number}]", prefix, name)))
