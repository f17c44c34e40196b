"""What the ranks recorded of their own training (`ActivityRecord`), by the scheduler's clock, joined with its event log.

A rank writes an interval with every heartbeat, into its own file. The scheduler may have been away when a rank did its first step;
the record of it then takes the place of the event that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recovery.core.ids import NodeId, Rank
from recovery.core.records import ActivityRecord, EventKind, EventRecord
from recovery.report.event_index import EventIndex
from recovery.store.reader import StoredEvent, Written

GENERATION_ENDS = (EventKind.GENERATION_INTERRUPTED, EventKind.JOB_FINISHED, EventKind.JOB_FAILED)
"""What ends a generation."""

_SKEW_MS = 2_000
"""Where the scheduler and the rank date a first step further apart than this, the clocks of their hosts differ by it."""


class RecordedInterval(NamedTuple):
    """An interval of training as a node recorded it, by the wall clock."""

    begin_ms: int
    end_ms: int
    first_step: int
    step: int
    due_ms: int
    """Within which the next one was to be written; 0: training had stopped."""
    is_first: bool
    """The generation's first one."""
    rank: Rank

    def later(self, by_ms: int) -> RecordedInterval:
        """The same by a clock that is ahead."""
        return self._replace(begin_ms=self.begin_ms + by_ms, end_ms=self.end_ms + by_ms)


ByGeneration = Mapping[int, Mapping[str, Sequence[RecordedInterval]]]
"""By generation and node, oldest first."""


def recorded_intervals(
    activity: Iterable[Written[ActivityRecord]], run: int, log: EventIndex
) -> ByGeneration:
    """Turn the records of a run into intervals by the scheduler's clock."""
    found: dict[int, dict[str, list[RecordedInterval]]] = {}
    for piece in sorted(activity, key=lambda piece: (piece.record.generation, piece.record.number)):
        record = piece.record
        if record.run == run:
            interval = RecordedInterval(
                piece.wall_ms - record.lasting_ms,
                piece.wall_ms,
                record.first_step,
                record.step,
                record.due_ms,
                record.number == 1,
                record.rank,
            )
            of_generation = found.setdefault(int(record.generation), {})
            of_generation.setdefault(str(record.node_id), []).append(interval)
    for generation, nodes in found.items():
        logged_ms = {
            str(stored.event.node_id): stored.wall_ms
            for stored in log.in_generation(generation, EventKind.FIRST_STEP_DONE)
        }
        for node, intervals in nodes.items():
            apart_ms = logged_ms.get(node, intervals[0].begin_ms) - intervals[0].begin_ms
            if intervals[0].is_first and abs(apart_ms) > _SKEW_MS:
                nodes[node] = [interval.later(apart_ms) for interval in intervals]
    return found


def with_first_steps(log: EventIndex, intervals: ByGeneration) -> list[StoredEvent]:
    """The event log, and in it the first steps that the scheduler did not hear of because it was away."""
    events: list[StoredEvent] = []
    missing: list[StoredEvent] = []
    for stored in log.events:
        while missing and (missing[0].wall_ms <= stored.wall_ms or stored.event.kind in GENERATION_ENDS):
            events.append(missing.pop(0))
        events.append(stored)
        if stored.event.kind is EventKind.PLAN_MADE:
            number = int(stored.event.generation or 0)
            logged = {
                first_step.event.node_id
                for first_step in log.in_generation(number, EventKind.FIRST_STEP_DONE)
            }
            unlogged = {
                node: recorded[0]
                for node, recorded in intervals.get(number, {}).items()
                if node not in logged
            }
            missing = sorted(_first_steps(stored, unlogged), key=lambda first_step: first_step.wall_ms)
    return events + missing


def _first_steps(plan: StoredEvent, unlogged: Mapping[str, RecordedInterval]) -> Iterator[StoredEvent]:
    for node, interval in unlogged.items():
        event = EventRecord(
            kind=EventKind.FIRST_STEP_DONE,
            node_id=NodeId(node),
            rank=interval.rank,
            run=plan.event.run,
            generation=plan.event.generation,
            step=interval.first_step,
        )
        yield StoredEvent(sequence=0, wall_ms=max(interval.begin_ms, plan.wall_ms), event=event)
