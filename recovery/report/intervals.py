"""Sets of times as sorted intervals: what two have in common, what one has and the other has not, both together."""

from __future__ import annotations

from collections.abc import Iterable

Intervals = tuple[tuple[int, int], ...]
"""(from, to) in milliseconds since 1970 UTC, in order and without overlaps."""

_EVER = (0, 1 << 62)


def intersection(some: Intervals, others: Intervals) -> Intervals:
    """What lies in both."""
    found, position = list[tuple[int, int]](), 0
    for begin_ms, end_ms in some:
        while position < len(others) and others[position][1] <= begin_ms:
            position += 1
        ahead = position
        while ahead < len(others) and others[ahead][0] < end_ms:
            both = max(begin_ms, others[ahead][0]), min(end_ms, others[ahead][1])
            found += [both] if both[0] < both[1] else []
            ahead += 1
    return tuple(found)


def difference(some: Intervals, others: Intervals) -> Intervals:
    """What lies in the first and not in the second."""
    if not others or some == others:
        return some if not others else ()
    ends = [begin_ms for begin_ms, _ in others]
    begins = [end_ms for _, end_ms in others]
    gaps = tuple(zip([_EVER[0], *begins], [*ends, _EVER[1]], strict=True))
    return intersection(some, gaps)


def union(times: Iterable[tuple[int, int]]) -> Intervals:
    """All of them, in any order and with overlaps before, as intervals."""
    found: list[tuple[int, int]] = []
    for begin_ms, end_ms in sorted(times):
        if found and begin_ms <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ms))
        else:
            found.append((begin_ms, end_ms))
    return tuple(found)


def length_ms(times: Intervals) -> int:
    """The sum of their lengths."""
    return sum(end_ms - begin_ms for begin_ms, end_ms in times)
