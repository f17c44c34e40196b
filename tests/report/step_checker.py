"""Works out a job's useful time and its lost steps from the step logs alone: deliberately dumb, and of no use but to check the product.

It knows nothing of events, stores or schedulers: a line for each step that a rank applied, with the wall time at which it did.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Figures(NamedTuple):
    """One generation."""

    useful_ms: int
    redone_ms: int
    reached: int
    pauses: int
    """How often nobody stepped for longer than a pause takes."""


def figures(lines: Iterable[Mapping[str, Any]], *, ranks: int, pause_ms: int) -> dict[int, Figures]:
    """By generation.

    Args:
        lines: of all step logs: rank, generation, step, wall_ms.
        ranks: how many there are.
        pause_ms: a longer time between two steps is one in which nobody trained.
    """
    by_generation: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_generation.setdefault(line["generation"], []).append(line)
    found, highest = {}, 0
    for generation in sorted(by_generation):
        of_it = by_generation[generation]
        found[generation] = _figures(of_it, ranks, highest, pause_ms)
        highest = max(highest, found[generation].reached)
    return found


def _figures(lines: list[Mapping[str, Any]], ranks: int, highest: int, pause_ms: int) -> Figures:
    reached = max(line["step"] for line in lines)
    first: dict[int, int] = {}
    for line in lines:
        first[line["rank"]] = min(line["wall_ms"], first.get(line["rank"], line["wall_ms"]))
    if len(first) < ranks:
        return Figures(0, 0, reached, 0)
    begin_ms = max(first.values())
    times = sorted({begin_ms, *(line["wall_ms"] for line in lines if line["wall_ms"] > begin_ms)})
    again_ms = min((line["wall_ms"] for line in lines if line["step"] >= highest), default=times[-1])
    if highest <= min(line["step"] for line in lines) - 1:
        again_ms = begin_ms
    useful = redone = pauses = 0
    for from_ms, to_ms in itertools.pairwise(times):
        if to_ms - from_ms > pause_ms:
            pauses += 1
        elif from_ms >= again_ms:
            useful += to_ms - from_ms
        else:
            redone += to_ms - from_ms
    return Figures(useful, redone, reached, pauses)


def lost_steps(of_all: Mapping[int, Figures], lines: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Steps that were done again, by the generation that had done them first."""
    begun: dict[int, int] = {}
    for line in lines:
        begun[line["generation"]] = min(line["step"] - 1, begun.get(line["generation"], line["step"] - 1))
    numbers = sorted(begun)
    return {
        before: max(0, of_all[before].reached - begun[after]) for before, after in itertools.pairwise(numbers)
    }
