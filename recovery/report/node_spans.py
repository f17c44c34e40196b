"""One lane per node: what it did from when to when, as the events and its own notes tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from recovery.core.records import EventKind, EventRecord
from recovery.report.training_time import Known, Times, common, joined, without
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
    UNKNOWN = "unknown"
    """Nobody noted what it did: the scheduler was away or heard nothing, and the node wrote nothing."""


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
_TRAINS = (Doing.RUNNING, Doing.REDOING)


def _spans_of(doing: Doing, times: Times) -> list[Span]:
    return [Span(doing=doing, begin_ms=begin_ms, end_ms=end_ms) for begin_ms, end_ms in times]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The same with neighbours of a kind as one."""
    found: list[Span] = []
    for span in spans:
        if found and (found[-1].doing, found[-1].end_ms) == (span.doing, span.begin_ms):
            found[-1] = Span(doing=span.doing, begin_ms=found[-1].begin_ms, end_ms=span.end_ms)
        else:
            found.append(span)
    return found


class Lanes:
    """Follows all nodes through the events."""

    def __init__(self, redone_until_ms: Mapping[int, int], known: Known) -> None:
        """Nobody has come yet.

        Args:
            redone_until_ms: by generation, until when it did steps again.
            known: when each node trained.
        """
        self._redone_until_ms, self._known = redone_until_ms, known
        self._unseen_since_ms: dict[str, int] = {}
        """Who waited or started when the scheduler died, since its last word; until the node is heard again."""
        self._ranks: dict[str, int] = {}
        self._now: dict[str, tuple[Doing, int]] = {}
        self._spans: dict[str, list[Span]] = {}

    def follow(self, events: Iterable[StoredEvent]) -> dict[str, tuple[Span, ...]]:
        """Give every node's lane, in the order of ranks."""
        last_ms = 0
        for stored in events:
            if stored.event.kind is EventKind.SCHEDULER_RESTARTED:
                self._lose_sight(last_ms)
            last_ms = stored.wall_ms
            self._take(stored.event, stored.wall_ms)
        for node in list(self._now):
            self._turn(node, None, self._known.end_ms)
        by_rank = sorted(self._spans, key=lambda node: (self._ranks.get(node, 1 << 30), node))
        return {node: tuple(self._as_noted(node)) for node in by_rank}

    def _lose_sight(self, since_ms: int) -> None:
        for node, (doing, _) in self._now.items():
            if doing in (Doing.WAITING, Doing.STARTING):
                self._unseen_since_ms.setdefault(node, since_ms)

    def _as_noted(self, node: str) -> list[Span]:
        """The node's spans; of those in which the scheduler took it for training, what nobody knows of is cut out."""
        generations = self._known.ranks.values()
        unknown = joined(one for ranks in generations for one in ranks.unknown.get(node, ()))
        trained = joined(one for ranks in generations for one in ranks.trained.get(node, ()))
        found = [span for span in self._spans[node] if span.doing not in _TRAINS]
        lost = {span.begin_ms for span in found if span.doing is Doing.LOST}
        for doing in _TRAINS:
            whole = tuple((one.begin_ms, one.end_ms) for one in self._spans[node] if one.doing is doing)
            seen = without(whole, unknown)
            found += _spans_of(doing, common(seen, trained))
            for rest in _spans_of(Doing.WAITING, without(seen, trained)):
                found.append(msgspec.structs.replace(rest, doing=Doing.LOST) if rest.end_ms in lost else rest)
            found += _spans_of(Doing.UNKNOWN, common(whole, unknown))
        return _joined(sorted(found, key=lambda span: span.begin_ms))

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
        if event.kind is EventKind.NODE_RESUMED:
            self._unseen_since_ms.pop(node, None)  # it has gone on all the while
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
        if before is not None:
            unseen_ms = self._unseen_since_ms.pop(node, at_ms) if self._unseen_since_ms else at_ms
            unseen_ms = min(at_ms, max(unseen_ms, before[1]))
            self._span(node, before[0], before[1], unseen_ms)
            self._span(node, Doing.UNKNOWN, unseen_ms, at_ms)
        if to is not None:
            self._now[node] = (to, at_ms)

    def _span(self, node: str, doing: Doing, begin_ms: int, end_ms: int) -> None:
        if end_ms > begin_ms:
            self._spans.setdefault(node, []).append(Span(doing=doing, begin_ms=begin_ms, end_ms=end_ms))
