"""In which order tests run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Test = TypeVar("Test")


def dealt(tests: Sequence[Test], is_slow: Callable[[Test], object], processes: int) -> list[Test]:
    """Order tests so that each of the equal parts that pytest-xdist cuts begins with its share of the longest.

    The others of a file stay together, so that few processes make what its tests share.
    """
    slow = [test for test in tests if is_slow(test)]
    rest = [test for test in tests if not is_slow(test)]
    order: list[Test] = []
    for number in range(processes):
        size = (len(tests) - len(order)) // (processes - number)
        own = slow[number::processes]
        short = max(0, size - len(own))
        order += own + rest[:short]
        del rest[:short]
    return order
