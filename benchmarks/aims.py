"""What the comparison shall show, as ratios of two figures of the same run: a slow or busy machine moves both."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from comparison import FRESH, Cell
from rows import Row, median
from systems import SWITCH

Cells = dict[tuple[str, int], Cell]
FORK, STANDBY, TORCHRUN = "msrun: fork", "msrun: standby", f"torchrun, {SWITCH}=1"
FORK_LIVE, STANDBY_LIVE = "msrun: fork, live", "msrun: standby, live"


class Figure(NamedTuple):
    """One side of a ratio."""

    system: str
    workers: int
    is_start: bool = False
    """Its start instead of its recovery."""


class Aim(NamedTuple):
    """A ratio and what it may be at most."""

    name: str
    of: Figure
    over: Figure
    limit: float


AIMS = (
    Aim("fork over a fresh process, 4 workers", Figure(FORK, 4), Figure(FRESH, 1), 1 / 12),
    Aim("standby over a fresh process, 4 workers", Figure(STANDBY, 4), Figure(FRESH, 1), 1 / 12),
    Aim("fork, 8 workers over 4", Figure(FORK, 8), Figure(FORK, 4), 1.3),
    Aim("standby, 8 workers over 4", Figure(STANDBY, 8), Figure(STANDBY, 4), 1.3),
    Aim("fork over torchrun, 4 workers", Figure(FORK, 4), Figure(TORCHRUN, 4), 1 / 30),
    Aim("standby over torchrun, 4 workers", Figure(STANDBY, 4), Figure(TORCHRUN, 4), 1 / 30),
    Aim("fork over torchrun, 8 workers", Figure(FORK, 8), Figure(TORCHRUN, 8), 1 / 30),
    Aim("standby over torchrun, 8 workers", Figure(STANDBY, 8), Figure(TORCHRUN, 8), 1 / 30),
    Aim("fork and live over torchrun, 4 workers", Figure(FORK_LIVE, 4), Figure(TORCHRUN, 4), 1 / 30),
    Aim("standby and live over torchrun, 4 workers", Figure(STANDBY_LIVE, 4), Figure(TORCHRUN, 4), 1 / 30),
    Aim("fork and live over torchrun, 8 workers", Figure(FORK_LIVE, 8), Figure(TORCHRUN, 8), 1 / 30),
    Aim("standby and live over torchrun, 8 workers", Figure(STANDBY_LIVE, 8), Figure(TORCHRUN, 8), 1 / 30),
    Aim(
        "fork, three lines over fork, 4 workers", Figure("msrun: fork, three lines", 4), Figure(FORK, 4), 1.5
    ),
    Aim("fork, start of 8 workers over 1", Figure(FORK, 8, True), Figure(FORK, 1, True), 1.5),
)


def ratios(cells: Cells) -> list[Row]:
    """One row per aim; `ratio` and `met` are None where a side was not measured."""
    return [_row(aim, lambda figure: _value(cells, figure)) for aim in AIMS]


def _row(aim: Aim, value: Callable[[Figure], float | None]) -> Row:
    of, over = value(aim.of), value(aim.over)
    ratio = round(of / over, 4) if of is not None and over else None
    return {
        "aim": aim.name,
        "ratio": ratio,
        "at_most": round(aim.limit, 4),
        "met": None if ratio is None else ratio <= aim.limit,
        "of_ms": of,
        "over_ms": over,
    }


def _value(cells: Cells, figure: Figure) -> float | None:
    cell = cells.get((figure.system, figure.workers))
    if cell is None:
        return None
    times = cell.starts_ms if figure.is_start else cell.floor_ms or [one.took_ms for one in cell.recoveries]
    return median(times)
