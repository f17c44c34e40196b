"""A row of a result: one way of doing it, measured several times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def row(mode: str, workers: int, times_ms: Sequence[float], lost: Sequence[int], failed: int = 0) -> Row:
    """One line of the result. p99 is the nearest rank, which is the maximum below 100 measurements."""
    ordered = sorted(times_ms)
    return {
        "mode": mode,
        "workers": workers,
        "median_ms": median(ordered),
        "p99_ms": round(ordered[math.ceil(0.99 * len(ordered)) - 1], 1) if ordered else None,
        "steps_lost": int(statistics.median(lost)) if lost else None,
        "n": len(ordered),
        "failed": failed,
    }


def median(values: Sequence[float]) -> float | None:
    """To a tenth; None of nothing."""
    return round(statistics.median(values), 1) if values else None
