"""What is known of each rank's training in each generation: from when to when it trained, how far it came, and where nobody knows.

The scheduler's events tell what it saw. It does not see its own end, nor who died or stood still while it was away; what each rank
noted of itself (`ActivityRecord`) bounds that to a heartbeat. A time that neither tells of is unknown, and never taken for training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recovery.core.ids import NodeId
from recovery.core.records import ActivityRecord, EventKind, EventRecord
from recovery.report.event_index import Chapters
from recovery.store.reader import StoredEvent, Written

Times = tuple[tuple[int, int], ...]
"""Stretches of time, (from, to) in milliseconds since 1970 UTC, one after the other."""

_APART_MS = 1_000
"""Two pieces of one stretch follow each other; the time of a write is late by milliseconds. A standstill leaves more than this."""
_SKEW_MS = 2_000
"""A first step that the scheduler and the rank put further apart than this tells that their hosts' clocks differ by it."""

ENDS = (EventKind.GENERATION_INTERRUPTED, EventKind.JOB_FINISHED, EventKind.JOB_FAILED)
"""What ends a generation."""


class Piece(NamedTuple):
    """A piece of a stretch, by the wall clock."""

    begin_ms: int
    end_ms: int
    first_step: int
    step: int
    due_ms: int
    is_first: bool
    """The generation's first one."""

    def later(self, by_ms: int) -> Piece:
        """The same by a clock that is ahead."""
        return self._replace(begin_ms=self.begin_ms + by_ms, end_ms=self.end_ms + by_ms)


class Ranks(NamedTuple):
    """One generation."""

    pieces: Mapping[str, Sequence[Piece]]
    """What each node noted."""
    first_steps: Mapping[str, StoredEvent]
    """What the scheduler heard of each node's first step."""
    trained: Mapping[str, Times]
    """When each node trained."""
    unknown: Mapping[str, Times]
    """When nobody knows whether it did, between its first step and the generation's end."""
    over_ms: int
    """When the scheduler ended the generation, or the story ends."""
    everybody: frozenset[str]

    @property
    def begun_ms(self) -> int | None:
        """When the last rank had done its first step; None: somebody has not."""
        if not self.trained or set(self.trained) != self.everybody:
            return None
        return max(first.wall_ms for first in self.first_steps.values())

    @property
    def together(self) -> Times:
        """When all ranks trained."""
        if self.begun_ms is None:
            return ()
        found: Times = ((0, self.over_ms),)
        for times in set(self.trained.values()):
            found = common(found, times)
        return found

    @property
    def newest_step(self) -> int:
        """The highest that a rank noted."""
        return max((piece.step for pieces in self.pieces.values() for piece in pieces), default=0)

    def passed_ms(self, step: int, commits: Iterable[StoredEvent]) -> int | None:
        """When the ranks had come to a step, taken to follow each other evenly between two notes; None: never, as far as is known."""
        told = [one.wall_ms for one in commits if (one.event.step or 0) >= step]
        told += [one.wall_ms for one in self.first_steps.values() if (one.event.step or 0) >= step]
        for pieces in self.pieces.values():
            told += [_passed(piece, step) for piece in pieces if piece.step >= step][:1]
        return min(told, default=None)


def _passed(piece: Piece, step: int) -> int:
    done, of_all = step - piece.first_step, piece.step - piece.first_step
    return piece.begin_ms + (piece.end_ms - piece.begin_ms) * max(0, done) // max(1, of_all)


class Known:
    """What is known of one run."""

    def __init__(
        self, events: Sequence[StoredEvent], activity: Iterable[Written[ActivityRecord]], *, run: int
    ) -> None:
        """Put both together.

        Args:
            events: of the run, oldest first.
            activity: what the ranks noted, of any run.
            run: which.
        """
        heard = Chapters(events)
        pieces = _pieces(activity, run, heard)
        self.chapters = Chapters(_with_first_steps(heard, pieces)) if pieces else heard
        self.end_ms = self._end_ms(pieces)
        told = self.chapters.all(EventKind.FIRST_STEP_DONE)
        self._everybody = frozenset(str(stored.event.node_id) for _, stored in told)
        self.ranks = {
            int(plan.event.generation or 0): self._of_generation(
                position, plan, pieces.get(int(plan.event.generation or 0), {})
            )
            for position, plan in self.chapters.all(EventKind.PLAN_MADE)
        }
        """By generation."""

    def _end_ms(self, pieces: Mapping[int, Mapping[str, Sequence[Piece]]]) -> int:
        """The last sign of life: of a generation that nobody has ended, a rank's note may be newer than all events."""
        events = self.chapters.events
        last_ms = events[-1].wall_ms if events else 0
        plans = list(self.chapters.all(EventKind.PLAN_MADE))
        if not plans or self.chapters.next(plans[-1][0], *ENDS) is not None:
            return last_ms
        newest = pieces.get(int(plans[-1][1].event.generation or 0), {})
        return max([last_ms, *(one[-1].end_ms for one in newest.values())])

    def _of_generation(
        self, position: int, plan: StoredEvent, pieces: Mapping[str, Sequence[Piece]]
    ) -> Ranks:
        over = self.chapters.next(position, *ENDS)
        over_ms = self.end_ms if over is None else self.chapters.events[over].wall_ms
        number = int(plan.event.generation or 0)
        first_steps = {
            str(stored.event.node_id): stored
            for stored in self.chapters.within(number, EventKind.FIRST_STEP_DONE)
        }
        commits = [stored.wall_ms for stored in self.chapters.within(number, EventKind.CHECKPOINT_COMMITTED)]
        trained, unknown = dict[str, Times](), dict[str, Times]()
        gone = self._gone(number, over_ms)
        for node, first in first_steps.items():
            noted = pieces.get(node, ())
            gone_ms = gone.get(node, over_ms)
            if noted:
                trained[node] = _trained(noted, first.wall_ms, commits, gone_ms)
                lost_sight = noted[-1].due_ms > 0
            else:
                until_ms = self._heard_until(node, first.wall_ms, commits, position, over)
                trained[node] = ((first.wall_ms, max(first.wall_ms, min(until_ms, gone_ms))),)
                lost_sight = True
            until_ms = gone_ms if lost_sight or not trained[node] else trained[node][-1][1]
            unknown[node] = without(((first.wall_ms, until_ms),), trained[node])
        return Ranks(pieces, first_steps, trained, unknown, over_ms, self._everybody)

    def _gone(self, generation: int, over_ms: int) -> dict[str, int]:
        """When the connections closed over which nodes were never heard again in their generation."""
        found: dict[str, int] = {}
        for one in self.chapters.within(generation, EventKind.NODE_SUSPECTED, EventKind.NODE_RESUMED):
            if one.wall_ms <= over_ms:
                found.pop(str(one.event.node_id), None)
                if one.event.kind is EventKind.NODE_SUSPECTED:
                    found[str(one.event.node_id)] = one.wall_ms
        return found

    def _heard_until(
        self, node: str, first_ms: int, commits: Sequence[int], position: int, over: int | None
    ) -> int:
        """Until when the scheduler vouches for a node that noted nothing: through each of its lives, if the node is heard in the next."""
        events = self.chapters.events
        until = len(events) if over is None else over
        restart = self.chapters.next(position, EventKind.SCHEDULER_RESTARTED)
        while restart is not None and restart < until:
            if not self._came_back(node, restart, until):
                before = [one for one in commits if one <= events[restart].wall_ms]
                return max(first_ms, events[restart - 1].wall_ms, *before)
            restart = self.chapters.next(restart + 1, EventKind.SCHEDULER_RESTARTED)
        return self.end_ms if over is None else events[over].wall_ms

    def _came_back(self, node: str, restart: int, until: int) -> bool:
        events = self.chapters.events[restart:until]
        return any(one.event.kind is EventKind.NODE_RESUMED and one.event.node_id == node for one in events)


def _pieces(
    activity: Iterable[Written[ActivityRecord]], run: int, heard: Chapters
) -> dict[int, dict[str, list[Piece]]]:
    """By generation and node, oldest first, by the scheduler's clock."""
    found: dict[int, dict[str, list[Piece]]] = {}
    for one in sorted(activity, key=lambda one: (one.record.generation, one.record.number)):
        record = one.record
        if record.run == run:
            piece = Piece(
                one.wall_ms - record.lasting_ms,
                one.wall_ms,
                record.first_step,
                record.step,
                record.due_ms,
                record.number == 1,
            )
            of_generation = found.setdefault(int(record.generation), {})
            of_generation.setdefault(str(record.node_id), []).append(piece)
    for generation, nodes in found.items():
        told = {
            str(stored.event.node_id): stored.wall_ms
            for stored in heard.within(generation, EventKind.FIRST_STEP_DONE)
        }
        for node, pieces in nodes.items():
            apart_ms = told.get(node, pieces[0].begin_ms) - pieces[0].begin_ms
            if pieces[0].is_first and abs(apart_ms) > _SKEW_MS:
                nodes[node] = [piece.later(apart_ms) for piece in pieces]
    return found


def _with_first_steps(
    heard: Chapters, pieces: Mapping[int, Mapping[str, Sequence[Piece]]]
) -> list[StoredEvent]:
    """The story, and in it the first steps that the scheduler did not hear of because it was away."""
    events: list[StoredEvent] = []
    missing: list[StoredEvent] = []
    for stored in heard.events:
        while missing and (missing[0].wall_ms <= stored.wall_ms or stored.event.kind in ENDS):
            events.append(missing.pop(0))
        events.append(stored)
        if stored.event.kind is EventKind.PLAN_MADE:
            number = int(stored.event.generation or 0)
            told = {one.event.node_id for one in heard.within(number, EventKind.FIRST_STEP_DONE)}
            unheard = {node: noted[0] for node, noted in pieces.get(number, {}).items() if node not in told}
            missing = sorted(_first_steps(stored, unheard), key=lambda one: one.wall_ms)
    return events + missing


def _first_steps(plan: StoredEvent, unheard: Mapping[str, Piece]) -> Iterator[StoredEvent]:
    for node, piece in unheard.items():
        event = EventRecord(
            kind=EventKind.FIRST_STEP_DONE,
            node_id=NodeId(node),
            run=plan.event.run,
            generation=plan.event.generation,
            step=piece.first_step,
        )
        yield StoredEvent(sequence=0, wall_ms=max(piece.begin_ms, plan.wall_ms), event=event)


def _trained(pieces: Sequence[Piece], first_ms: int, commits: Sequence[int], over_ms: int) -> Times:
    """The pieces joined where they follow each other; a common checkpoint proves that its ranks lived, whoever failed to note it."""
    begin_ms = pieces[0].begin_ms if pieces[0].is_first else first_ms
    found = [(begin_ms, pieces[0].end_ms)]
    for piece in pieces[1:]:
        if piece.begin_ms - found[-1][1] <= _APART_MS:
            found[-1] = (found[-1][0], max(found[-1][1], piece.end_ms))
        else:
            found.append((piece.begin_ms, piece.end_ms))
    end_ms = max([found[-1][1], *(one for one in commits if one <= over_ms)])
    if 0 < over_ms - end_ms <= pieces[-1].due_ms:
        end_ms = over_ms  # the next note was not due yet
    found[-1] = (found[-1][0], end_ms)
    return common(tuple(found), ((0, over_ms),))


# --- times ---------------------------------------------------------------------------------------------------------------


def common(some: Times, others: Times) -> Times:
    """What lies in both; each in order and without overlaps."""
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


def without(some: Times, others: Times) -> Times:
    """What lies in the first and not in the second; each in order and without overlaps."""
    if not others or some == others:
        return some if not others else ()
    ends = [begin_ms for begin_ms, _ in others]
    begins = [end_ms for _, end_ms in others]
    gaps = tuple(zip([_EVER[0], *begins], [*ends, _EVER[1]], strict=True))
    return common(some, gaps)


_EVER = (0, 1 << 62)


def joined(times: Iterable[tuple[int, int]]) -> Times:
    """The same without overlaps."""
    found: list[tuple[int, int]] = []
    for begin_ms, end_ms in sorted(times):
        if found and begin_ms <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ms))
        else:
            found.append((begin_ms, end_ms))
    return tuple(found)


def length_ms(times: Times) -> int:
    """All of it."""
    return sum(end_ms - begin_ms for begin_ms, end_ms in times)
