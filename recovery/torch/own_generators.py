"""Random generators that a data set, a module or the training function keeps: no checkpoint has them, so that behind a failure other numbers are drawn.

They are found by what objects hold, and no code of theirs is run for it: no property, no `__getattr__`, no iterator.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import random  # noqa: TID251 - its class is looked for, nothing is drawn
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from recovery.torch.around import OF_STATE, Advice, Around
from recovery.torch.held_objects import OF_ONE_MAX, reached
from recovery.torch.kept_generators import KeptGenerator, kinds
from recovery.torch.module_names import bare
from recovery.torch.sampled_order import generators_of, parts_of

_logger = logging.getLogger("recovery.torch")

_SEVERAL: tuple[type[Iterable[Any]], ...] = (list, tuple, deque, set, frozenset)
_SHOWN = 3

_said: set[str] = set()


_MODULES_OWN = frozenset(vars(torch.nn.Module())) - {"_modules"}
"""Attributes of each module, in which torch keeps what is no generator."""
_FRAMEWORKS = frozenset({"lightning", "pytorch_lightning", "transformers", "accelerate", "torch"})
_FACES = ("recovery.lightning", "recovery.transformers", "recovery.accelerate")
"""They stand between a program and this package, and have nothing of the program's own."""
_ABOVE_A_PROGRAM = ("recovery", "runpy", "importlib", "_pytest", "pluggy")


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


def note_program(
    parts: Mapping[str, Sequence[Any]], around: Around | None = None, advice: Advice = OF_STATE
) -> None:
    """Before the first step: the same of the modules among the parts of a state, of what a trainer calls, and of the functions that train it.

    Args:
        parts: of the state; a generator that is one is in the checkpoint.
        around: what a framework's trainer has besides.
        advice: what a script is to do.
    """
    around = around or Around()
    items = [bare(item) for of_part in parts.values() for item in of_part]
    kept = [*items, *(item.generator for item in items if isinstance(item, KeptGenerator))]
    kept += [*around.own, *around.of_loaders()]
    kept += [one for held in around.attributes_kept() for one in _several_in(held)]
    for part, of_part in parts.items():
        for number, item in enumerate(map(bare, of_part)):
            if isinstance(item, torch.nn.Module):
                _say(logging.WARNING, f"{part}[{number}]", _held_by_modules(item, but=kept), advice)
    called = {name: one for name, one in around.called.items() if not _is_among(one, around.keeping)}
    for name, one in called.items():
        _say(logging.WARNING, name, held_by(one, but=(*kept, *around.called.values())), advice)
    for frame in frames_of_program():
        _say(logging.INFO, f"{frame.f_code.co_name}()", _held_by_frame(frame, but=kept), advice)


def _is_among(one: Any, several: Iterable[Any]) -> bool:
    return any(one is other for other in several)


def _say(level: int, where: str, found: Iterable[tuple[str, str]], advice: Advice) -> None:
    text = f"{where} keeps a random generator of its own: " + ", ".join(
        f"{place} ({kind})" for place, kind in itertools.islice(found, _SHOWN)
    )
    if text.endswith(": ") or text in _said:
        return
    _said.add(text)
    _logger.log(
        level,
        "event=own_generator %s. No checkpoint has it: if the steps draw from it, a job that goes on draws other numbers. %s",
        text,
        advice.generator,
    )


def _held_by_modules(item: torch.nn.Module, *, but: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """One that has an extra state of its own may have them there."""
    modules = dict(item.named_modules())
    of_torch = torch.nn.Module.get_extra_state
    for name, module in modules.items():
        if type(module).get_extra_state is of_torch:
            prefix = f".{name}" if name else ""
            yield from (
                (prefix + place, kind) for place, kind in held_by(module, but=(*but, *module.children()))
            )


def _held_by_frame(frame: types.FrameType, *, but: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """By its variables, and those of its module that its code names. Not inside of objects, which a function may hold for anything."""
    variables = variables_of(frame)
    known = {id(one) for one in (*but, *_shared_objects(), *_of_loaders(variables.values()))}
    for name, value in variables.items():
        for one in _several_in(value):
            if issubclass(type(one), kinds()) and id(one) not in known:
                known.add(id(one))
                yield name, f"{type(one).__module__}.{type(one).__qualname__}"


def variables_of(frame: types.FrameType) -> dict[str, Any]:
    """Its own, and those of its module that its code names."""
    named = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    return {**named, **_locals_of(frame)}


def _several_in(value: Any) -> Iterator[Any]:
    """It, and what lists and dictionaries hold, two deep."""
    yield value
    inside = [one for _, one in _places(value)]
    yield from inside
    for one in inside:
        yield from (inner for _, inner in _places(one))


def _locals_of(frame: types.FrameType) -> dict[str, Any]:
    variables = dict(frame.f_locals)
    # Up to Python 3.12 a function's frame would hold what it was asked for to its end, whatever the function lets go of meanwhile.
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(snapshot := frame.f_locals) is dict:
        snapshot.clear()
    return variables


def _of_loaders(values: Iterable[Any]) -> Iterator[Any]:
    """Generators of torch's loaders and of their samplers, which decide an order."""
    for loader in values:
        if isinstance(loader, torch.utils.data.DataLoader):
            yield from generators_of(loader)


def frames_of_program() -> Iterator[types.FrameType]:
    """From where it has called this package, or the framework that has, up to where it was called."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - Python has no public name for it
    while frame is not None and _root_of(frame) == "recovery":
        frame = frame.f_back
    while frame is not None and (_is_between(frame) or _root_of(frame) not in _ABOVE_A_PROGRAM):
        if not _is_between(frame):
            yield frame
        frame = frame.f_back


def _is_between(frame: types.FrameType) -> bool:
    return _root_of(frame) in _FRAMEWORKS or _module_of(frame).startswith(_FACES)


def _module_of(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _root_of(frame: types.FrameType) -> str:
    return _module_of(frame).partition(".")[0]


def held_by(root: Any, *, but: Iterable[Any] = ()) -> Iterator[tuple[str, str]]:
    """Each generator that can be reached, not by way of `but`: its place, from the object on, and its type."""
    looked_for, shared = kinds(), set(map(id, _shared_objects()))

    def is_one(value: Any) -> bool:
        return issubclass(type(value), looked_for)

    for place, holder, value in reached(root, _inside, lambda value: not is_one(value), but=but):
        if is_one(value) and id(value) not in shared and not _draws_from_copies(holder):
            yield place, f"{type(value).__module__}.{type(value).__qualname__}"


def _shared_objects() -> tuple[Any, ...]:
    """The program's own: they are in the checkpoint."""
    numpy = sys.modules.get("numpy.random")
    of_numpy = getattr(getattr(numpy, "mtrand", None), "_rand", None)
    of_python = getattr(random.random, "__self__", None)
    return of_python, torch.default_generator, of_numpy


def _draws_from_copies(holder: Any) -> bool:
    """Hugging Face's data sets copy the generator of their `shuffle` in each pass (datasets 5.2): what they draw follows from its seed."""
    return type(holder).__module__.partition(".")[0] == "datasets"


def _has_state(dataset: Any) -> bool:
    return any("state_dict" in vars(kind) for kind in type(dataset).__mro__)


def _inside(holder: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, and how one comes to it."""
    kind = type(holder)
    yield from _places(holder)
    if kind is types.FunctionType:
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


def _places(holder: Any) -> Iterator[tuple[str, Any]]:
    """Of what holds several, and how one comes to each: OrderedDict and deque are kinds of these, and so are users' classes."""
    for kind in _SEVERAL:
        if issubclass(type(holder), kind):
            numbered = enumerate(itertools.islice(kind.__iter__(holder), OF_ONE_MAX))
            yield from ((f"[{number}]", value) for number, value in numbered)
    if issubclass(type(holder), dict):
        for key, value in _first(holder):
            yield f"[{key!r}]" if type(key) in (str, int) else f"[{type(key).__name__}]", value


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Of the instance, in its dictionary and its slots, and generators of its class."""
    looked_for, is_module = kinds(), issubclass(type(holder), torch.nn.Module)
    for kind in type(holder).__mro__:
        for name, value in tuple(vars(kind).items()):
            if type(value) is types.GetSetDescriptorType and name == "__dict__":
                yield from (
                    (f".{key}", one)
                    for key, one in _first(value.__get__(holder))
                    if not (is_module and key in _MODULES_OWN)
                )
            elif type(value) is types.MemberDescriptorType and kind.__module__ != "builtins":
                try:
                    yield f".{name}", value.__get__(holder)
                except AttributeError:
                    # A slot that nothing was put into.
                    continue
            elif issubclass(type(value), looked_for):
                yield f".{name}", value


def _first(of: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(itertools.islice(dict.items(of), OF_ONE_MAX))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises where there is nothing yet
    except ValueError:
        return False
    return True
