"""One lane per node: what it did from when to when, as the events tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from recovery.core.records import EventKind, EventRecord
from recovery.store.reader import StoredEvent


class Doing(str, Enum):
    """What a node does."""

    WAITING = "waiting"
    """Here, but the world is not: somebody is missing."""
    STARTING = "starting"
    """It has a plan: forms the world, loads, until its first step."""
    REDOING = "redoing"
    """Steps that were applied before, in a generation that was rolled back."""
    RUNNING = "running"
    LOST = "lost"
    REFUSED = "refused"
    """Started again, and not let in yet."""


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stretch of time, milliseconds since 1970 UTC."""

    doing: Doing
    begin_ms: int
    end_ms: int


def blended(spans: Iterable[Span], least_ms: float) -> Iterator[Span]:
    """Spans that are wide enough to be seen: neighbours that are not become one, which does what most of its time went to.

    Args:
        spans: one lane.
        least_ms: what is shorter cannot be seen; of a lane's end one shorter span may be left.
    """
    short: list[Span] = []
    for span in spans:
        is_short = span.end_ms - span.begin_ms < least_ms
        if short and (not is_short or span.end_ms - short[0].begin_ms >= least_ms):
            yield _blend(short)
            short = []
        if is_short:
            short.append(span)
        else:
            yield span
    if short:
        yield _blend(short)


def _blend(spans: Sequence[Span]) -> Span:
    times: dict[Doing, int] = {}
    for span in spans:
        times[span.doing] = times.get(span.doing, 0) + span.end_ms - span.begin_ms
    return Span(
        doing=max(times, key=lambda doing: times[doing]),
        begin_ms=spans[0].begin_ms,
        end_ms=spans[-1].end_ms,
    )


_OF_ONE = {
    EventKind.NODE_ADMITTED: Doing.WAITING,
    EventKind.NODE_RESUMED: Doing.WAITING,
    EventKind.NODE_READY: Doing.WAITING,
    EventKind.NODE_LOST: Doing.LOST,
    EventKind.NODE_REFUSED: Doing.REFUSED,
    EventKind.FIRST_STEP_DONE: Doing.RUNNING,
    EventKind.NODE_LEFT: None,
    EventKind.NODE_FAILED: None,
}
"""What an event means for the node that it names; None: it is gone."""
_OF_ALL = {EventKind.GENERATION_INTERRUPTED: Doing.WAITING, EventKind.PLAN_MADE: Doing.STARTING}
"""And for everybody who is there."""
_ONLY_AFTER = {
    EventKind.NODE_REFUSED: (Doing.LOST,),
    EventKind.NODE_RESUMED: (Doing.LOST, Doing.REFUSED, None),
}
"""What else means nothing: somebody asked for an id that is held; only a connection is new."""
_AWAY = (Doing.LOST, Doing.REFUSED)


class Lanes:
    """Follows all nodes through the events."""

    def __init__(self, redone_until_ms: Mapping[int, int]) -> None:
        """Nobody has come yet.

        Args:
            redone_until_ms: by generation, until when it did steps again.
        """
        self._redone_until_ms = redone_until_ms
        self._ranks: dict[str, int] = {}
        self._now: dict[str, tuple[Doing, int]] = {}
        self._spans: dict[str, list[Span]] = {}

    def follow(self, events: Iterable[StoredEvent]) -> dict[str, tuple[Span, ...]]:
        """Give every node's lane, in the order of ranks."""
        last_ms = 0
        for stored in events:
            last_ms = stored.wall_ms
            self._take(stored.event, stored.wall_ms)
        for node in list(self._now):
            self._turn(node, None, last_ms)
        by_rank = sorted(self._spans, key=lambda node: (self._ranks.get(node, 1 << 30), node))
        return {node: tuple(self._spans[node]) for node in by_rank}

    def _take(self, event: EventRecord, at_ms: int) -> None:
        if event.kind in _OF_ALL:
            for node, (doing, _) in list(self._now.items()):
                if doing not in _AWAY:
                    self._turn(node, _OF_ALL[event.kind], at_ms)
        elif event.node_id is not None and event.kind in _OF_ONE:
            if event.rank is not None:
                self._ranks[event.node_id] = event.rank
            self._of_one(event, str(event.node_id), at_ms)

    def _of_one(self, event: EventRecord, node: str, at_ms: int) -> None:
        before = self._now[node][0] if node in self._now else None
        if event.kind in _ONLY_AFTER and before not in _ONLY_AFTER[event.kind]:
            return
        until_ms = self._redone_until_ms.get(int(event.generation or 0), 0)
        if event.kind is EventKind.FIRST_STEP_DONE and until_ms > at_ms:
            self._turn(node, Doing.REDOING, at_ms)
            self._turn(node, Doing.RUNNING, until_ms)
        else:
            self._turn(node, _OF_ONE[event.kind], at_ms)

    def _turn(self, node: str, to: Doing | None, at_ms: int) -> None:
        before = self._now.pop(node, None)
        if before is not None and at_ms > before[1]:
            span = Span(doing=before[0], begin_ms=before[1], end_ms=at_ms)
            self._spans.setdefault(node, []).append(span)
        if to is not None:
            self._now[node] = (to, at_ms)
