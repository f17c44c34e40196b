"""Attributes of the objects that a framework's loop calls (its callbacks, the user's own trainer): what training has changed of them is in no checkpoint of its.

Numbers, text and tensors, in lists and dicts too, are kept; what else is seen to change is given to be named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from recovery.torch import module_attributes
from recovery.torch.attribute_values import NotPlainError, Opaque, copied, is_on_device, is_users, mark, moved

_MODULES = "(weights of modules that are no submodules)"

Place = tuple[str, str]
"""(holder, attribute)."""
Look = dict[str, tuple[Any, dict[str, Any]]]
"""By the holder: it, and marks of its attributes."""
Kept = dict[Place, dict[str, Any]]
"""The value, and whether it was on a device."""


class KeptAttributes:
    """Of one training. Holders have a name that is the same at each start."""

    def __init__(
        self,
        attributes: Callable[[Any, frozenset[int]], Iterator[tuple[str, Any]]],
        name: Callable[[Place, Any, Any], None],
    ) -> None:
        """Nothing has changed yet.

        Args:
            attributes: of a holder, which are looked at, with their values (`with_inside`); it is given the ids of tensors that are in the checkpoint.
            name: says of a place, its holder and its value that it has changed and is not kept.
        """
        self._attributes, self._name = attributes, name
        self._kept: set[Place] = set()
        self._built: Kept = {}

    def prepare(self, holders: Iterable[tuple[str, Any]], known: frozenset[int]) -> Look:
        """As they are before any hook of training has run. What can be kept is noted."""
        here = dict(holders)
        for key, holder in here.items():
            for name, value in self._attributes(holder, known):
                with contextlib.suppress(NotPlainError):
                    self._built[key, name] = {"value": copied(value), "on_device": is_on_device(value)}
        return self.look(here.items(), known)

    def begin(self, holders: Mapping[str, Any], saved: Kept | None, device: torch.device) -> None:
        """The hooks of the beginning have run, and what they have set was noted. Where training goes on, what is not `saved` they had left as it was built."""
        if saved is not None:
            as_built = {
                place: self._built[place] for place in self._kept - saved.keys() if place in self._built
            }
            self.put(holders, as_built, device)
        self._built = {}

    def look(self, holders: Iterable[tuple[str, Any]], known: frozenset[int] = frozenset()) -> Look:
        """As they are now; `known` are ids of tensors that are in the checkpoint."""
        return {
            key: (
                holder,
                {
                    name: mark(value)
                    for name, value in self._attributes(holder, known)
                    if (key, name) not in self._kept
                },
            )
            for key, holder in holders
        }

    def note(self, before: Look, after: Look, *, names: bool = True) -> None:
        """What differs is kept from here on, or named."""
        for key, (holder, marks) in after.items():
            of, was = before.get(key, (None, {}))
            if of is not holder:
                # Loaders that are made again have other data sets: nobody has changed them.
                continue
            values = dict(self._attributes(holder, frozenset()))
            for name in (name for name, marked in marks.items() if name not in was or was[name] != marked):
                try:
                    copied(values[name])
                    self._kept.add((key, name))
                except NotPlainError:
                    if names:
                        self._name((key, name), holder, values[name])

    def take(self, holders: Mapping[str, Any]) -> Kept:
        """What is kept, as it is now. No tensor is copied."""
        taken: Kept = {}
        values = {
            key: dict(self._attributes(holders[key], frozenset()))
            for key in {key for key, _ in self._kept} & holders.keys()
        }
        for key, name in sorted(self._kept):
            value = values.get(key, {}).get(name)
            try:
                taken[key, name] = {"value": copied(value), "on_device": is_on_device(value)}
            except NotPlainError:
                self._name((key, name), holders[key], value)
        return taken

    def put(self, holders: Mapping[str, Any], saved: Kept, device: torch.device) -> None:
        """Put back what `take` has given. It is kept from here on."""
        for (key, name), kept in saved.items():
            if key in holders:
                on = device if kept["on_device"] else torch.device("cpu")
                # No property or `__setattr__` of the user's runs: it would do again what the hook has done.
                vars(holders[key])[name] = moved(kept["value"], on)
        self._kept |= set(saved)


def with_inside(
    name: str, value: Any, known: frozenset[int], *, objects: bool = True
) -> Iterator[tuple[str, Any]]:
    """An attribute, and what modules in it hold, or an object of the user's unless `objects` is False: that is compared only."""
    yield name, value
    if objects and is_users(value) and not isinstance(value, torch.nn.Module):
        yield f"{name}.__dict__", Opaque(mark(vars(value)))
    elif held := module_attributes.of_modules_in(value, known):
        yield f"{name} {_MODULES}", held
