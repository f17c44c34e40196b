"""Write the state diagrams of docs/img from the tables in the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recovery.core.scheduler import barrier
from recovery.core.scheduler.job_states import AT_START, JOB_STATES
from recovery.core.scheduler.node import NEXT_STATES
from recovery.core.worker.transitions import CONNECTION_MOVES, WORKER_MOVES
from tests.house.files import ROOT

_BOX_W, _BOX_H = 120, 40
Place = tuple[int, int]

_NODE_PLACES: Mapping[str, Place] = {
    "live": (60, 60),
    "suspect": (300, 60),
    "lost": (540, 60),
    "left": (300, 190),
}
_JOB_PLACES: Mapping[str, Place] = {
    "forming": (60, 60),
    "running": (300, 60),
    "interrupted": (540, 60),
    "finished": (300, 190),
    "failed": (540, 190),
}

_WORKER_PLACES: Mapping[str, Place] = {
    "outside": (60, 60),
    "idle": (300, 60),
    "training": (540, 60),
    "leaving": (180, 190),
    "stopping": (420, 190),
}
_CONNECTION_PLACES: Mapping[str, Place] = {
    "disconnected": (60, 60),
    "connected": (300, 60),
    "admitted": (540, 60),
    "waiting": (60, 190),
    "refused": (300, 190),
}

_BARRIER_PLACES: Mapping[str, Place] = {
    "asking": (60, 60),
    "agreeing": (300, 60),
    "saving": (540, 60),
    "ended": (300, 190),
    "handing over": (540, 190),
}

_ARROW_HEAD = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" style="fill:#5b6675"/></marker></defs>'
)


def drawing(title: str, places: Mapping[str, Place], moves: Sequence[tuple[str, str]]) -> str:
    """Boxes at their places, an arrow for each move; two that go both ways stand side by side."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 260" width="720" role="img" aria-label="{title}">',
        "<style>text{font:15px system-ui,sans-serif;fill:#1c2430}rect{fill:#eef2f9;stroke:#4a7fc1}path{stroke:#5b6675;fill:none}</style>",
        _ARROW_HEAD,
    ]
    for begin, end in moves:
        parts.append(_arrow(places[begin], places[end], bent=(end, begin) in moves))
    for name, (x, y) in places.items():
        parts.append(f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="6"/>')
        parts.append(f'<text x="{x + _BOX_W // 2}" y="{y + 25}" text-anchor="middle">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _arrow(begin: Place, end: Place, *, bent: bool) -> str:
    (x1, y1), (x2, y2) = begin, end
    if y1 == y2:
        return _along(x1, x2, y1, bent=bent)
    shift = 14 if bent else 0
    side = shift if y2 > y1 else -shift
    top, bottom = y1 + (_BOX_H if y2 > y1 else 0), y2 + (0 if y2 > y1 else _BOX_H)
    return f'<path d="M{x1 + _BOX_W // 2 + side} {top}L{x2 + _BOX_W // 2 + side} {bottom}" marker-end="url(#a)"/>'


def _along(x1: int, x2: int, y: int, *, bent: bool) -> str:
    """In one row: straight to the neighbour, over the top past one that is between."""
    right = x2 > x1
    if abs(x2 - x1) > 2 * _BOX_W:
        peak = y - 50 if right else y - 34
        return f'<path d="M{x1 + _BOX_W // 2} {y}C{x1 + _BOX_W} {peak} {x2} {peak} {x2 + _BOX_W // 2} {y}" marker-end="url(#a)"/>'
    lift = (12 if right else 28) if bent else _BOX_H // 2
    begin, end = (x1 + _BOX_W, x2) if right else (x1, x2 + _BOX_W)
    return f'<path d="M{begin} {y + lift}L{end} {y + lift}" marker-end="url(#a)"/>'


def node_states() -> str:
    """What a node may become, from the table that the core asserts."""
    moves = [
        (begin.value, end.value)
        for begin, ends in NEXT_STATES.items()
        for end in sorted(ends)
        if end is not begin
    ]
    return drawing("states of a node", _NODE_PLACES, moves)


def job_states() -> str:
    """What a job may become while a scheduler serves it, from the table that the core follows."""
    moves = [
        (begin.value, end.value)
        for begin, moves_of in JOB_STATES.items()
        for fact, end in moves_of.items()
        if end is not begin and fact not in AT_START
    ]
    return drawing("states of a job", _JOB_PLACES, moves)


def worker_states() -> str:
    """What a worker may become, from the table that its machine moves by."""
    moves = [(begin.value, end.value) for begin, row in WORKER_MOVES.items() for end in row.values()]
    return drawing("states of a worker", _WORKER_PLACES, moves)


def connection_states() -> str:
    """What a worker's connection to the scheduler may become, from the table that it moves by."""
    moves = [(begin.value, end.value) for begin, row in CONNECTION_MOVES.items() for end in row.values()]
    return drawing("states of a worker's connection", _CONNECTION_PLACES, moves)


def barrier_states() -> str:
    """How far all ranks may be on their way to one step, from the table that the scheduler's machine follows."""
    moves = [
        (begin.value, end.value)
        for begin, ends in barrier.NEXT_STATES.items()
        for end in sorted(ends)
        if end is not begin
    ]
    return drawing("states of a barrier", _BARRIER_PLACES, moves)


DRAWINGS = {
    ROOT / "docs/img/barrier_states.svg": barrier_states,
    ROOT / "docs/img/node_states.svg": node_states,
    ROOT / "docs/img/job_states.svg": job_states,
    ROOT / "docs/img/worker_states.svg": worker_states,
    ROOT / "docs/img/connection_states.svg": connection_states,
}
