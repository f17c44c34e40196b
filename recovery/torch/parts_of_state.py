"""The parts of a training state as a program gives them: by name, each one object or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recovery.errors import UsageError
from recovery.torch.kept_generators import KeptGenerator, is_generator
from recovery.torch.passes import Passes


def named(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The objects of each part that is given, with a state. A list stays what the program may still add to."""
    return {name: _items(part) for name, part in given.items() if part is not None}


def are_generators(part: Any) -> bool:
    """Is it a dictionary of random generators, as `{"crop": ..., "flip": ...}`?"""
    return isinstance(part, dict) and bool(part) and all(map(is_generator, part.values()))


def _items(part: Any) -> list[Any]:
    if are_generators(part):
        # By their keys: a program may come to build them in another order.
        part = [part[key] for key in sorted(part, key=str)]
    items = part if isinstance(part, list) else list(part) if isinstance(part, tuple) else [part]
    if any(map(is_generator, items)):
        return [KeptGenerator(item) if is_generator(item) else item for item in items]
    return items


def check(parts: Mapping[str, Sequence[Any]]) -> None:
    """See that every object can be saved and loaded.

    Raises:
        UsageError: one has no `state_dict` and `load_state_dict`.
    """
    for name, items in parts.items():
        for item in items:
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UsageError(
                    field=name,
                    reason=f"{type(item).__name__} has no state_dict and load_state_dict",
                    next_step="Give an object that has both, or leave it out.",
                )


def those_named(names: Iterable[str], parts: Iterable[str]) -> frozenset[str]:
    """The parts that differ between ranks.

    Raises:
        UsageError: there is none of such a name.
    """
    given, known = frozenset([names] if isinstance(names, str) else names), sorted(parts)
    unknown = sorted(given.difference(known))
    if unknown:
        raise UsageError(
            field="per_rank",
            reason=f"names {unknown}, and the parts are {known}",
            next_step="Name parts that are given.",
        )
    return given


def without_loaders(parts: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """A loader compares its own position, since the data may have been divided otherwise on purpose."""
    return {
        name: items for name, items in parts.items() if not any(isinstance(item, Passes) for item in items)
    }
