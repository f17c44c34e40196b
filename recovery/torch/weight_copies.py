"""Copies of a model's weights that the steps change and that are no part of the state: an average written by hand, a target network, a queue of samples.

Behind a failure they would begin again, and nothing would say so. They are looked for among the variables of the functions that train, and directly in
what those hold; no code of theirs is run. Only what has changed between the begin of training and the first save is named. Numbers never are: loops count them.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from recovery.torch import module_names, own_generators, schedules, spread
from recovery.torch.around import OF_STATE, Advice, Around
from recovery.torch.attribute_values import is_users

_logger = logging.getLogger("recovery.torch")

_HELD_MAX, _TENSORS_MAX = 100, 10_000
_COMPARED, _ELEMENTS = 8, 64
"""Tensors, spread over all of one object, and elements of each. A version says little: `average.data.mul_(...)` does not count as a change."""
_SHOWN = 3
_NOT_LOOKED_INTO = (Dataset, DataLoader, AveragedModel)
"""Loaders have their places again; of averaged weights schedules.py says so."""

Sample = list[torch.Tensor]


class WeightCopies:
    """Of one training, noted where it begins."""

    def __init__(self, parts: Mapping[str, Sequence[Any]], around: Around | None = None) -> None:
        """Sample them, but for what a framework's trainer has around it: that is kept or named as attributes are."""
        self._before = {place: _sample(tensors) for place, tensors in _found(parts, around or Around())}

    def report(
        self,
        parts: Mapping[str, Sequence[Any]],
        around: Around | None = None,
        advice: Advice = OF_STATE,
    ) -> None:
        """At the first save, on the thread that trains: name those that have changed. Called once."""
        changed = [
            place
            for place, tensors in _found(parts, around or Around())
            if place in self._before and _differ(self._before[place], _sample(tensors))
        ]
        if changed:
            _logger.warning(
                "event=not_a_part objects=%s the steps have changed them, and they are not named: no checkpoint has them, and they begin again behind "
                "a failure. If the steps depend on them, %s",
                ",".join(changed[:_SHOWN]),
                advice.copies,
            )


def _found(parts: Mapping[str, Sequence[Any]], around: Around) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The place of each, and tensors that are no part's."""
    items = [module_names.bare(item) for of_part in parts.values() for item in of_part]
    shapes = [_shapes(item.parameters()) for item in items if isinstance(item, torch.nn.Module)]
    held = [*schedules.held_by([*items, *around.attributes_kept()]), *itertools.chain(*parts.values())]
    theirs = frozenset(map(id, (*around.called.values(), *around.keeping, *around.own)))
    seen, found = {*map(id, held), *theirs}, []
    for frame in own_generators.frames_of_program():
        for place, one in _places(own_generators.variables_of(frame), theirs):
            if id(one) in seen or isinstance(one, _NOT_LOOKED_INTO):
                continue
            seen.add(id(one))
            tensors = _state_in(one)
            if _is_like(one, tensors, shapes):
                found.append((place, tensors))
    known = {_memory(tensor) for one in held for tensor in _state_in(one)} if found else set()
    for place, tensors in found:
        if not any(_memory(tensor) in known for tensor in tensors):
            yield place, tensors


def _places(variables: Mapping[str, Any], theirs: frozenset[int]) -> Iterator[tuple[str, Any]]:
    for name, value in variables.items():
        if id(value) in theirs:
            continue
        yield name, value
        if type(value) in (list, tuple):
            inside = ((f"[{number}]", one) for number, one in enumerate(value[:_HELD_MAX]))
        elif type(value) is dict:
            inside = ((f"[{key!r}]", one) for key, one in value.items() if type(key) in (str, int))
        elif is_users(value) and not isinstance(value, torch.nn.Module):
            inside = ((f".{key}", one) for key, one in vars(value).items())
        else:
            continue
        yield from ((name + key, one) for key, one in itertools.islice(inside, _HELD_MAX))


def _state_in(one: Any) -> list[torch.Tensor]:
    """Tensors directly in it that could be weights or samples."""
    found: Iterable[Any] = ()
    if isinstance(one, torch.nn.Module):
        found = itertools.chain(one.parameters(), one.buffers())
    elif type(one) in (dict, list, tuple):
        # A longer one is data.
        found = () if len(one) > _TENSORS_MAX else one.values() if type(one) is dict else one
    elif isinstance(one, torch.Tensor):
        found = [one]
    elif isinstance(one, deque) and one:
        found = one[-1] if isinstance(one[-1], (list, tuple)) else [one[-1]]
    return [tensor for tensor in found if _is_state(tensor)]


def _is_state(one: Any) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and not is_lazy(one)
        and one.layout is torch.strided
        and one.is_floating_point()
        and one.device.type != "meta"
        and one.numel() > 1
    )


def _is_like(one: Any, tensors: list[torch.Tensor], models: Iterable[Counter[torch.Size]]) -> bool:
    """As many tensors, of the same shapes, as a model has; or a queue, which may be empty yet."""
    found = _shapes(tensors)
    return isinstance(one, deque) or any(of_model and of_model <= found for of_model in models)


def _shapes(tensors: Iterable[torch.Tensor]) -> Counter[torch.Size]:
    return Counter(tensor.shape for tensor in tensors if _is_state(tensor))


def _memory(tensor: torch.Tensor) -> tuple[torch.device, int]:
    local = spread.local(tensor)
    return local.device, local.untyped_storage().data_ptr()


def _sample(tensors: Sequence[torch.Tensor]) -> Sample:
    every = max(1, len(tensors) // _COMPARED)
    return [_elements(tensor.detach()) for tensor in tensors[::every][:_COMPARED]]


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    some = spread.local(tensor)
    while some.dim() > 1 and some.shape[0]:
        some = some[0]
    return some[:_ELEMENTS].clone()


def _differ(before: Sample, now: Sample) -> bool:
    return len(before) != len(now) or any(
        one.shape != other.shape or not torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(before, now, strict=True)
    )
