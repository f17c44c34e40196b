"""The longest tests are begun first, in every process."""

from __future__ import annotations

import pytest

from tests.order import dealt


@pytest.mark.parametrize("processes", [1, 2, 6])
@pytest.mark.parametrize("slow", [0, 1, 13, 40])
def test_each_process_has_its_share_of_the_slow_ones_and_begins_with_it(processes: int, slow: int) -> None:
    tests = list(range(100))
    order = dealt(tests, lambda test: test >= len(tests) - slow, processes)

    assert sorted(order) == tests
    assert [test for test in order if test < len(tests) - slow] == tests[: len(tests) - slow]
    begun = 0
    for number in range(processes):
        # As pytest-xdist cuts: what is left, by the processes that have nothing yet.
        part = order[begun : begun + (len(tests) - begun) // (processes - number)]
        begun += len(part)
        share = len(range(number, slow, processes))
        assert [test >= len(tests) - slow for test in part] == [True] * share + [False] * (len(part) - share)


def test_fewer_tests_than_processes() -> None:
    assert sorted(dealt([1, 2], lambda test: test == 1, 6)) == [1, 2]
