"""The spans of each node: what it did from when to when, by the events and by its own records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from recovery.core.policy.ranks import first_id, natural_key
from recovery.core.records import AS_STANDBY, STARTS_AGAIN, EventKind, EventRecord
from recovery.report.intervals import Intervals, difference, intersection, union
from recovery.report.training_time import TrainingTimes
from recovery.store.reader import StoredEvent


class Doing(str, Enum):
    """What a node does."""

    WAITING = "waiting"
    """It is connected, but the world is not complete."""
    STARTING = "starting"
    """It has a plan: forms the world, loads, until its first step."""
    REDOING = "redoing"
    """Steps that were applied before, in a generation that was rolled back."""
    RUNNING = "running"
    STANDING_BY = "standing by"
    """It holds no rank, and takes one when one is lost."""
    STARTING_AGAIN = "starting again"
    """It has survived a failure, and starts its program again."""
    LOST = "lost"
    REFUSED = "refused"
    """Started again, and not let in yet."""
    UNKNOWN = "unknown"
    """Nobody recorded what it did: the scheduler was away or heard nothing, and the node wrote nothing."""


_ENDED = (Doing.LOST, Doing.STARTING_AGAIN, Doing.REFUSED, Doing.UNKNOWN)


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stretch of time, milliseconds since 1970 UTC."""

    doing: Doing
    begin_ms: int
    end_ms: int


def visible(spans: Iterable[Span], least_ms: float) -> Iterator[Span]:
    """Spans that are wide enough to be seen: neighbours that are not become one, which does what most of its time went to.

    Args:
        spans: of one node, oldest first.
        least_ms: what is shorter cannot be seen; at the end one shorter span may be left.
    """
    short: list[Span] = []
    for span in spans:
        is_short = span.end_ms - span.begin_ms < least_ms
        if short and (not is_short or span.end_ms - short[0].begin_ms >= least_ms):
            yield _merged(short)
            short = []
        if is_short:
            short.append(span)
        else:
            yield span
    if short:
        yield _merged(short)


def by_slot(spans: Mapping[str, Sequence[Span]]) -> dict[str, tuple[Span, ...]]:
    """One row for each slot, as drawings have them: a process that follows under a fresh id (`1.2` behind `1`) goes on in its row.

    Args:
        spans: by node id. What an id did (it was lost, it is refused) ends in the row where its successor begins.

    Returns:
        By the first id of each slot, in the order in which they came.
    """
    slots: dict[str, list[str]] = {}
    for node in spans:
        before = slots.get(first_id(node), [])
        has_a_row = bool(before) and all(_has_ended(spans[earlier], spans[node]) for earlier in before)
        slots.setdefault(first_id(node) if has_a_row or not before else node, []).append(node)
    ids = {slot if slot in spans else nodes[0]: nodes for slot, nodes in slots.items()}
    rows: dict[str, tuple[Span, ...]] = {}
    for slot, nodes in ids.items():
        row: list[Span] = []
        for node in sorted(nodes, key=natural_key):
            if spans[node]:
                row = [*_until(row, spans[node][0].begin_ms), *spans[node]]
        rows[slot] = tuple(row)
    return rows


def _has_ended(earlier: Sequence[Span], later: Sequence[Span]) -> bool:
    """Had a process ended when another one came? Else a person has called two workers `gpu.2` and `gpu.3`."""
    came_ms = later[0].begin_ms if later else 0
    return not any(span.begin_ms <= came_ms < span.end_ms and span.doing not in _ENDED for span in earlier)


def _until(spans: Iterable[Span], end_ms: int) -> Iterator[Span]:
    for span in spans:
        if span.begin_ms < end_ms:
            yield msgspec.structs.replace(span, end_ms=min(span.end_ms, end_ms))


def _merged(spans: Sequence[Span]) -> Span:
    times: dict[Doing, int] = {}
    for span in spans:
        times[span.doing] = times.get(span.doing, 0) + span.end_ms - span.begin_ms
    return Span(
        doing=max(times, key=lambda doing: times[doing]),
        begin_ms=spans[0].begin_ms,
        end_ms=spans[-1].end_ms,
    )


OF_ONE_NODE = {
    EventKind.NODE_ADMITTED: Doing.WAITING,
    EventKind.NODE_RESUMED: Doing.WAITING,
    EventKind.NODE_READY: Doing.WAITING,
    EventKind.NODE_LOST: Doing.LOST,
    EventKind.PROCESS_ENDED: Doing.LOST,
    EventKind.NODE_REFUSED: Doing.REFUSED,
    EventKind.FIRST_STEP_DONE: Doing.RUNNING,
    EventKind.NODE_LEFT: None,
    EventKind.NODE_FAILED: None,
    EventKind.RANK_TAKEN_OVER: Doing.WAITING,
}
"""What an event means for the node that it names; None: it is gone."""
OF_ALL_NODES = {EventKind.GENERATION_INTERRUPTED: Doing.WAITING, EventKind.PLAN_MADE: Doing.STARTING}
"""And for all nodes that are connected."""
_ONLY_AFTER = {
    EventKind.NODE_REFUSED: (Doing.LOST,),
    EventKind.NODE_RESUMED: (Doing.LOST, Doing.STARTING_AGAIN, Doing.REFUSED, None),
    EventKind.PROCESS_ENDED: (Doing.STARTING_AGAIN,),
}
"""After anything else these change nothing: a stranger asked for an id that is held; only the connection is new; more is known of one that is lost."""
NO_CHANGE = frozenset(
    {
        EventKind.SCHEDULER_STARTED,
        EventKind.SCHEDULER_RESTARTED,
        EventKind.SCHEDULER_STOPPED,
        EventKind.STORE_REBUILT,
        EventKind.HISTORY_THINNED,
        EventKind.PROGRAM_DIFFERS,
        EventKind.NODE_SUSPECTED,
        EventKind.HANG_SUSPECTED,
        EventKind.HANG_CLEARED,
        EventKind.STRAGGLER_FOUND,
        EventKind.STRAGGLER_CLEARED,
        EventKind.TAKEOVER_DECLINED,
        EventKind.DRAIN_BEGUN,
        EventKind.DRAIN_ENDED,
        EventKind.RANKS_ASSIGNED,
        EventKind.RENDEZVOUS_OPENED,
        EventKind.STATE_LOADED,
        EventKind.CHECKPOINT_COMMITTED,
        EventKind.CHECKPOINT_INVALID,
        EventKind.CHECKPOINT_NOT_COMMON,
        EventKind.REPLICAS_DIFFER,
        EventKind.CHECKPOINT_NOT_SAVED,
        EventKind.CHECKPOINT_PASSED_OVER,
        EventKind.CHECKPOINT_COPIED,
        EventKind.CHECKPOINT_FETCHED,
        EventKind.COPY_FAILED,
        EventKind.UPLOAD_FAILED,
        EventKind.TRAINING_STOPPED,
        EventKind.COPIES_LIMITED,
        EventKind.JOB_FINISHED,
        EventKind.RUN_CONTINUED,
        EventKind.JOB_FAILED,
    }
)
"""Events after which every node does what it did before. Each event stands in exactly one of the three."""
_AWAY = (Doing.LOST, Doing.STARTING_AGAIN, Doing.REFUSED, Doing.STANDING_BY)
"""What a node does whom the end of a generation and the next plan do not concern."""
_TRAINS = (Doing.RUNNING, Doing.REDOING)


def _spans_of(doing: Doing, times: Intervals) -> list[Span]:
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


class NodeSpans:
    """Follows all nodes through the events."""

    def __init__(self, redone_until_ms: Mapping[int, int], times: TrainingTimes) -> None:
        """No node is there yet.

        Args:
            redone_until_ms: by generation, until when it did steps again.
            times: when each node trained.
        """
        self._redone_until_ms, self._times = redone_until_ms, times
        self._unseen_since_ms: dict[str, int] = {}
        """Nodes that waited or started when the scheduler died: the time of its last event, until the node is heard again."""
        self._ranks: dict[str, int] = {}
        self._now: dict[str, tuple[Doing, int]] = {}
        self._spans: dict[str, list[Span]] = {}

    def advance(self, events: Iterable[StoredEvent]) -> dict[str, tuple[Span, ...]]:
        """Give every node's spans, in the order of ranks. Called once."""
        last_ms = 0
        for stored in events:
            if stored.event.kind is EventKind.SCHEDULER_RESTARTED:
                self._lose_sight(last_ms)
            last_ms = stored.wall_ms
            self._take(stored.event, stored.wall_ms)
        for node in list(self._now):
            self._turn(node, None, self._times.end_ms)
        by_rank = sorted(self._spans, key=lambda node: (self._ranks.get(node, 1 << 30), node))
        return {node: tuple(self._as_recorded(node)) for node in by_rank}

    def _lose_sight(self, since_ms: int) -> None:
        for node, (doing, _) in self._now.items():
            if doing in (Doing.WAITING, Doing.STARTING):
                self._unseen_since_ms.setdefault(node, since_ms)

    def _as_recorded(self, node: str) -> list[Span]:
        """The node's spans; of those in which the scheduler took it for training, what nobody knows of is cut out."""
        generations = self._times.generations.values()
        unknown = union(interval for times in generations for interval in times.unknown.get(node, ()))
        trained = union(interval for times in generations for interval in times.trained.get(node, ()))
        found = [span for span in self._spans[node] if span.doing not in _TRAINS]
        lost = {span.begin_ms for span in found if span.doing is Doing.LOST}
        for doing in _TRAINS:
            whole = tuple((span.begin_ms, span.end_ms) for span in self._spans[node] if span.doing is doing)
            seen = difference(whole, unknown)
            found += _spans_of(doing, intersection(seen, trained))
            for rest in _spans_of(Doing.WAITING, difference(seen, trained)):
                found.append(msgspec.structs.replace(rest, doing=Doing.LOST) if rest.end_ms in lost else rest)
            found += _spans_of(Doing.UNKNOWN, intersection(whole, unknown))
        return _joined(sorted(found, key=lambda span: span.begin_ms))

    def _take(self, event: EventRecord, at_ms: int) -> None:
        if event.kind in NO_CHANGE:
            return
        if event.kind in OF_ALL_NODES:
            for node, (doing, _) in list(self._now.items()):
                if doing not in _AWAY:
                    self._turn(node, OF_ALL_NODES[event.kind], at_ms)
        elif event.node_id is not None:
            if event.rank is not None:
                self._ranks[event.node_id] = event.rank
            self._of_one(event, str(event.node_id), at_ms)

    def _of_one(self, event: EventRecord, node: str, at_ms: int) -> None:
        before = self._now[node][0] if node in self._now else None
        if event.kind is EventKind.NODE_ADMITTED and event.details == AS_STANDBY:
            self._turn(node, Doing.STANDING_BY, at_ms)
            return
        if before is Doing.STANDING_BY and event.kind in (EventKind.NODE_READY, EventKind.NODE_RESUMED):
            return
        if event.kind is EventKind.RANK_TAKEN_OVER:
            # Nobody waits any more for the one that lost it.
            self._turn(event.details, None, at_ms)
        if event.kind is EventKind.NODE_RESUMED:
            # It went on all the while that the scheduler was away.
            self._unseen_since_ms.pop(node, None)
        if event.kind in _ONLY_AFTER and before not in _ONLY_AFTER[event.kind]:
            return
        if event.kind is EventKind.NODE_LOST and event.details == STARTS_AGAIN:
            self._turn(node, Doing.STARTING_AGAIN, at_ms)
            return
        until_ms = self._redone_until_ms.get(int(event.generation or 0), 0)
        if event.kind is EventKind.FIRST_STEP_DONE and until_ms > at_ms:
            self._turn(node, Doing.REDOING, at_ms)
            self._turn(node, Doing.RUNNING, until_ms)
        else:
            self._turn(node, OF_ONE_NODE[event.kind], at_ms)

    def _turn(self, node: str, to: Doing | None, at_ms: int) -> None:
        before = self._now.pop(node, None)
        if before is not None:
            unseen_ms = self._unseen_since_ms.pop(node, at_ms) if self._unseen_since_ms else at_ms
            unseen_ms = min(at_ms, max(unseen_ms, before[1]))
            self._add(node, before[0], before[1], unseen_ms)
            self._add(node, Doing.UNKNOWN, unseen_ms, at_ms)
        if to is not None:
            self._now[node] = (to, at_ms)

    def _add(self, node: str, doing: Doing, begin_ms: int, end_ms: int) -> None:
        if end_ms > begin_ms:
            self._spans.setdefault(node, []).append(Span(doing=doing, begin_ms=begin_ms, end_ms=end_ms))
