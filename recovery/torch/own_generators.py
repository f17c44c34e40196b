"""Random generators that a data set keeps for itself: no checkpoint has them, so that what it draws behind a failure is not what it would have drawn.

They are found by what objects hold, and no code of theirs is run for it: no property, no `__getattr__`, no iterator.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random  # noqa: TID251 - its class is looked for, nothing is drawn
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from recovery.torch.sampled_order import parts_of

_logger = logging.getLogger("recovery.torch")

_DEEP = 6
"""Attributes and places from the data set to a generator: `.dataset.transform.transforms[2].rng` has five."""
_LOOKED_AT_MAX, _OF_ONE_MAX = 2_000, 100
"""Objects in all, and of one list or dictionary: a data set may hold a million names of files."""
_SHOWN = 3

_said: set[str] = set()


def note(
    dataset: Any, collate_fn: Any = None, *, keeps_state: bool = False, kept: Iterable[Any] = ()
) -> None:
    """Log, once in a process, which generators a data set and its collate function hold.

    Args:
        dataset: of a loader.
        collate_fn: likewise; None: torch's own.
        keeps_state: the loader saves and restores the data set's own state, if it has one.
        kept: what the loader gives again behind a restart besides: its samplers with all that they hold, its generators.
    """
    # An object of the user's may have the collate function as a method, and hold data set and sampler: the one was looked at, the other is kept.
    kept = (*kept, dataset)
    for what, root in (("data set", dataset), ("collate function", collate_fn)):
        if root is None or (root is dataset and keeps_state and _has_state(root)):
            continue
        found = [f"{place} ({kind})" for place, kind in itertools.islice(held_by(root, but=kept), _SHOWN)]
        is_function = type(root) in (types.FunctionType, types.MethodType)
        name = root.__qualname__ if is_function else type(root).__name__
        text = f"the {what} {name} keeps a random generator of its own: {', '.join(found)}"
        if found and text not in _said:
            _said.add(text)
            _logger.warning(
                "event=own_generator %s. No checkpoint has it: unless each item seeds it, a job that goes on in the middle of a pass draws other "
                "numbers. Seed it for each item, from the item's index, or draw from torch's, numpy's or Python's own generators",
                text,
            )


def note_of(loader: Any, *, keeps_state: bool = False) -> None:
    """The same of a loader that says what it is made of, as torch's does. Its order is had again, however it is drawn.

    Args:
        loader: iterable; one without a data set is not looked at.
        keeps_state: as above.
    """
    order = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    parts = [loader, *(part for one in order if one is not None for part in parts_of(one))]
    generators = [
        getattr(part, name, None) for part in parts for name in ("generator", "synchronized_generator")
    ]
    dataset, collate_fn = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    note(dataset, collate_fn, keeps_state=keeps_state, kept=[*parts, *generators])


def held_by(root: Any, *, but: Iterable[Any] = ()) -> Iterator[tuple[str, str]]:
    """Each generator that can be reached, not by way of `but`: its place, from the object on, and its type."""
    kinds, shared = _kinds(), _shared()
    left, seen = [("", root, 0)], {id(root), *map(id, but)}
    for place, holder, depth in itertools.islice(_growing(left), _LOOKED_AT_MAX):
        for name, value in _inside(holder):
            if id(value) in seen:
                continue
            seen.add(id(value))
            if issubclass(type(value), kinds):
                if id(value) not in shared and not _draws_from_copies(holder):
                    yield place + name, f"{type(value).__module__}.{type(value).__qualname__}"
            elif depth + 1 < _DEEP:
                left.append((place + name, value, depth + 1))


def _growing(left: list[tuple[str, Any, int]]) -> Iterator[tuple[str, Any, int]]:
    """What is near comes first; the list grows meanwhile."""
    yield from left


def _kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    return (
        random.Random,
        torch.Generator,
        *((numpy.Generator, numpy.RandomState) if numpy is not None else ()),
    )


def _shared() -> set[int]:
    """The program's own, by identity: they are in the checkpoint."""
    numpy = sys.modules.get("numpy.random")
    of_numpy = getattr(getattr(numpy, "mtrand", None), "_rand", None)
    of_python = getattr(random.random, "__self__", None)
    return {id(one) for one in (of_python, torch.default_generator, of_numpy)}


def _draws_from_copies(holder: Any) -> bool:
    """Hugging Face's data sets copy the generator of their `shuffle` in each pass (datasets 5.2): what they draw follows from its seed."""
    return type(holder).__module__.partition(".")[0] == "datasets"


def _has_state(dataset: Any) -> bool:
    return any("state_dict" in vars(kind) for kind in type(dataset).__mro__)


def _inside(holder: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, and how one comes to it."""
    kind = type(holder)
    if kind in (list, tuple):
        yield from ((f"[{number}]", value) for number, value in enumerate(holder[:_OF_ONE_MAX]))
    elif kind is dict:
        yield from ((f"[{key!r}]", value) for key, value in _first(holder) if type(key) in (str, int))
    elif kind is types.FunctionType:
        cells = zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True)
        yield from ((f".{name}", cell.cell_contents) for name, cell in cells if _is_filled(cell))
        yield "()", holder.__defaults__
        yield "()", holder.__kwdefaults__
    elif kind in (types.MethodType, types.BuiltinMethodType):
        yield "", holder.__self__
    elif issubclass(kind, functools.partial):
        yield "", holder.func
        yield "()", holder.args
        yield "()", holder.keywords
    elif not issubclass(kind, (type, types.ModuleType, torch.Tensor)):
        yield from _attributes(holder)


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Of the instance, in its dictionary and its slots, and generators of its class."""
    kinds = _kinds()
    for kind in type(holder).__mro__:
        for name, value in tuple(vars(kind).items()):
            if type(value) is types.GetSetDescriptorType and name == "__dict__":
                yield from ((f".{key}", one) for key, one in _first(value.__get__(holder)))
            elif type(value) is types.MemberDescriptorType and kind.__module__ != "builtins":
                try:
                    yield f".{name}", value.__get__(holder)
                except AttributeError:
                    # A slot that nothing was put into.
                    continue
            elif issubclass(type(value), kinds):
                yield f".{name}", value


def _first(of: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(itertools.islice(dict.items(of), _OF_ONE_MAX))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises where there is nothing yet
    except ValueError:
        return False
    return True
