"""What can be reached from an object: what it holds, what that holds, and so on, within bounds. The caller says how one looks into each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_DEEP = 6
"""Attributes and places from the first object on: `.dataset.transform.transforms[2].rng` has five."""
_LOOKED_AT_MAX = 2_000
OF_ONE_MAX = 100
"""Objects in all, and of one list or dictionary: a data set may hold a million names of files."""


def reached(
    root: Any,
    inside: Callable[[Any], Iterable[tuple[str, Any]]],
    goes_on: Callable[[Any], bool],
    *,
    but: Iterable[Any] = (),
) -> Iterator[tuple[str, Any, Any]]:
    """Each object once, what is near first: its place from the root on, what holds it, and it.

    Args:
        root: where to begin; it is not given itself.
        inside: what an object holds, and how one comes to it.
        goes_on: is what this one holds looked at, too?
        but: what is not given, and not gone through.
    """
    left, seen = [("", root, 0)], {id(root), *map(id, but)}
    for place, holder, depth in itertools.islice(_growing(left), _LOOKED_AT_MAX):
        for name, value in inside(holder):
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield place + name, holder, value
            if depth + 1 < _DEEP and goes_on(value):
                left.append((place + name, value, depth + 1))


def _growing(left: list[tuple[str, Any, int]]) -> Iterator[tuple[str, Any, int]]:
    """The list grows meanwhile."""
    yield from left
