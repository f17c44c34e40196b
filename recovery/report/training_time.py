"""When each rank is known to have trained in each generation, how far it came, and for which times nobody knows.

The scheduler's events say what it saw. It does not see its own end, nor which nodes died or were paused while it was away; what each rank
recorded of itself bounds that to a heartbeat. A time of which neither says anything is unknown, and never counted as training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from recovery.core.records import NO_STEP, ActivityRecord, EventKind
from recovery.report.event_index import EventIndex
from recovery.report.intervals import Intervals, difference, intersection, union
from recovery.report.recorded_activity import (
    GENERATION_ENDS,
    ByGeneration,
    RecordedInterval,
    recorded_intervals,
    with_first_steps,
)
from recovery.store.reader import StoredEvent, Written

_APART_MS = 1_000
"""Intervals that follow each other are one: the time of a write is late by milliseconds. A pause leaves more than this between them."""


class GenerationTimes(NamedTuple):
    """One generation."""

    recorded: Mapping[str, Sequence[RecordedInterval]]
    """What each node recorded."""
    first_steps: Mapping[str, StoredEvent]
    """When the scheduler heard of each node's first step."""
    trained: Mapping[str, Intervals]
    """When each node trained."""
    unknown: Mapping[str, Intervals]
    """When nobody knows whether it did, between its first step and the generation's end."""
    over_ms: int
    """When the scheduler ended the generation, or the event log ends."""
    all_ranks: frozenset[int | None]
    """Every rank of the run. Which node holds one changes when it is taken over."""
    hung_ms: int | None = None
    """Since when a rank hung until the generation's end: from then on nobody trained, though each was here. None: none did."""

    @property
    def begun_ms(self) -> int | None:
        """When the last rank had done its first step; None: somebody has not."""
        if not self.trained or {first.event.rank for first in self.first_steps.values()} != self.all_ranks:
            return None
        return max(first.wall_ms for first in self.first_steps.values())

    @property
    def together(self) -> Intervals:
        """When all ranks trained."""
        if self.begun_ms is None:
            return ()
        found: Intervals = ((0, self.over_ms),)
        for times in set(self.trained.values()):
            found = intersection(found, times)
        return found

    @property
    def newest_step(self) -> int:
        """The highest that a rank recorded."""
        return max((interval.step for recorded in self.recorded.values() for interval in recorded), default=0)

    def passed_ms(self, step: int, commits: Iterable[StoredEvent]) -> int | None:
        """When the ranks had come to a step; None: never, as far as is known.

        Between two records the steps are taken to follow each other evenly.
        """
        known_ms = [commit.wall_ms for commit in commits if (commit.event.step or 0) >= step]
        known_ms += [
            first_step.wall_ms
            for first_step in self.first_steps.values()
            if (first_step.event.step or 0) >= step
        ]
        for recorded in self.recorded.values():
            known_ms += _passed_by(recorded, step)
        return min(known_ms, default=None)


def _passed_by(recorded: Sequence[RecordedInterval], step: int) -> list[int]:
    """When a node had come to a step; empty: never, as far as it recorded."""
    return [_passed_ms(interval, step) for interval in recorded if interval.step >= step][:1]


def _stood_since(recorded: Sequence[RecordedInterval], step: int) -> list[int]:
    """When a node had come to the step at which it stood: at the pace of the record before, since in this one it may have stood for most of the time."""
    at = next((number for number, interval in enumerate(recorded) if interval.step >= step), None)
    if at is None:
        return []
    passed_ms, this, before = _passed_ms(recorded[at], step), recorded[at], recorded[max(0, at - 1)]
    if before.step == before.first_step:
        return [passed_ms]
    paced_ms = (
        (before.end_ms - before.begin_ms) * (step - this.first_step) // (before.step - before.first_step)
    )
    return [min(passed_ms, this.begin_ms + max(0, paced_ms))]


def _passed_ms(interval: RecordedInterval, step: int) -> int:
    done, of_all = step - interval.first_step, interval.step - interval.first_step
    return interval.begin_ms + (interval.end_ms - interval.begin_ms) * max(0, done) // max(1, of_all)


class TrainingTimes:
    """All generations of one run."""

    def __init__(
        self, events: Sequence[StoredEvent], activity: Iterable[Written[ActivityRecord]], *, run: int
    ) -> None:
        """Put the event log, oldest first, and the ranks' own records together."""
        log = EventIndex(events)
        recorded = recorded_intervals(activity, run, log)
        self.log = EventIndex(with_first_steps(log, recorded)) if recorded else log
        self.end_ms = self._end_ms(recorded)
        first_steps = self.log.of_kind(EventKind.FIRST_STEP_DONE)
        self._all_ranks = frozenset(stored.event.rank for _, stored in first_steps)
        self.generations = {
            int(plan.event.generation or 0): self._of_generation(
                position, plan, recorded.get(int(plan.event.generation or 0), {})
            )
            for position, plan in self.log.of_kind(EventKind.PLAN_MADE)
        }
        """By number."""

    @property
    def began_ms(self) -> int:
        """When all ranks had done their first step, for the first time; 0: they have not."""
        return next((one.begun_ms for one in self.generations.values() if one.begun_ms), 0)

    @property
    def trained_ms(self) -> int:
        """Until when all ranks are known to have trained last; 0: they never did."""
        newest_first = (self.generations[number] for number in sorted(self.generations, reverse=True))
        return next((found[-1][1] for one in newest_first if (found := one.together)), 0)

    @cached_property
    def pauses(self) -> Intervals:
        """When the scheduler had been asked to end or the run had finished, no rank trained, as far as is known, and nobody had started the job again."""
        away: list[tuple[int, int]] = []
        for position, stopped in (
            stop
            for kind in (EventKind.SCHEDULER_STOPPED, EventKind.JOB_FINISHED)
            for stop in self.log.of_kind(kind)
        ):
            again = self.log.first_from(position, EventKind.SCHEDULER_RESTARTED)
            if again is not None:
                away.append((stopped.wall_ms, self.log.events[again].wall_ms))
        if not away:
            return ()
        trained = [
            interval
            for generation in self.generations.values()
            for of_node in (generation.trained, generation.unknown)
            for intervals in of_node.values()
            for interval in intervals
        ]
        return difference(union(away), union(trained))

    def _end_ms(self, recorded: ByGeneration) -> int:
        """The time of the last record: of a generation that nobody has ended, a rank's record may be newer than all events."""
        events = self.log.events
        last_ms = events[-1].wall_ms if events else 0
        plans = list(self.log.of_kind(EventKind.PLAN_MADE))
        if not plans or self.log.first_from(plans[-1][0], *GENERATION_ENDS) is not None:
            return last_ms
        newest = recorded.get(int(plans[-1][1].event.generation or 0), {})
        return max([last_ms, *(intervals[-1].end_ms for intervals in newest.values())])

    def _of_generation(
        self, position: int, plan: StoredEvent, recorded: Mapping[str, Sequence[RecordedInterval]]
    ) -> GenerationTimes:
        over = self.log.first_from(position, *GENERATION_ENDS)
        over_ms = self.end_ms if over is None else self.log.events[over].wall_ms
        number = int(plan.event.generation or 0)
        first_steps = {
            str(stored.event.node_id): stored
            for stored in self.log.in_generation(number, EventKind.FIRST_STEP_DONE)
        }
        commits = [
            stored.wall_ms for stored in self.log.in_generation(number, EventKind.CHECKPOINT_COMMITTED)
        ]
        trained, unknown = dict[str, Intervals](), dict[str, Intervals]()
        gone, found_dead = self._gone(number, over_ms), self._found_dead(number, position, over_ms)
        for node, first in first_steps.items():
            intervals = recorded.get(node, ())
            gone_ms = gone.get(node, over_ms)
            if intervals:
                trained[node] = _trained(
                    intervals, first.wall_ms, commits, gone_ms, seen=node not in found_dead
                )
                lost_sight = intervals[-1].due_ms > 0
            else:
                until_ms = self._heard_until(node, first.wall_ms, commits, position, over)
                trained[node] = ((first.wall_ms, max(first.wall_ms, min(until_ms, gone_ms))),)
                lost_sight = True
            until_ms = gone_ms if lost_sight or not trained[node] else trained[node][-1][1]
            unknown[node] = difference(((first.wall_ms, until_ms),), trained[node])
        hung_ms = self._hung_ms(number, over, recorded)
        if hung_ms is not None:
            trained = {node: intersection(times, ((0, hung_ms),)) for node, times in trained.items()}
        return GenerationTimes(recorded, first_steps, trained, unknown, over_ms, self._all_ranks, hung_ms)

    def _hung_ms(
        self, generation: int, over: int | None, recorded: Mapping[str, Sequence[RecordedInterval]]
    ) -> int | None:
        """Since when a rank made no step until its generation was ended: from the step behind which it was suspected, or given up."""
        if over is None or self.log.events[over].event.kind is EventKind.JOB_FINISHED:
            return None
        ended, found = self.log.events[over], list[int]()
        if ended.event.details == NO_STEP:
            # It names the step that the rank had made, which came there last.
            came_ms = [ms for own in recorded.values() for ms in _stood_since(own, ended.event.step or 0)]
            found.append(max(came_ms, default=ended.wall_ms))
        suspected: dict[str, StoredEvent] = {}
        for stored in self.log.in_generation(generation, EventKind.HANG_SUSPECTED, EventKind.HANG_CLEARED):
            suspected.pop(str(stored.event.node_id), None)
            if stored.event.kind is EventKind.HANG_SUSPECTED:
                suspected[str(stored.event.node_id)] = stored
        for node, stored in suspected.items():
            own, step = recorded.get(node, ()), stored.event.step or 0
            if not _passed_by(own, step + 1):
                found += _stood_since(own, step) or [stored.wall_ms]
        return min(found, default=None)

    def _gone(self, generation: int, over_ms: int) -> dict[str, int]:
        """When the connections closed of the nodes that were never heard again in their generation."""
        found: dict[str, int] = {}
        for stored in self.log.in_generation(generation, EventKind.NODE_SUSPECTED, EventKind.NODE_RESUMED):
            if stored.wall_ms <= over_ms:
                found.pop(str(stored.event.node_id), None)
                if stored.event.kind is EventKind.NODE_SUSPECTED:
                    found[str(stored.event.node_id)] = stored.wall_ms
        return found

    def _found_dead(self, generation: int, position: int, over_ms: int) -> set[str]:
        """Whom a scheduler found dead when it was back: nobody saw when they ended."""
        restart = self.log.first_from(position, EventKind.SCHEDULER_RESTARTED)
        restarted_ms = over_ms + 1 if restart is None else self.log.events[restart].wall_ms
        found: set[str] = set()
        for stored in self.log.in_generation(generation, EventKind.NODE_LOST, EventKind.NODE_RESUMED):
            if restarted_ms <= stored.wall_ms <= over_ms:
                change = found.add if stored.event.kind is EventKind.NODE_LOST else found.discard
                change(str(stored.event.node_id))
        return found

    def _heard_until(
        self, node: str, first_ms: int, commits: Sequence[int], position: int, over: int | None
    ) -> int:
        """Until when the scheduler vouches for a node that recorded nothing.

        Through each of the scheduler's incarnations, if the next one hears the node again.
        """
        events = self.log.events
        until = len(events) if over is None else over
        restart = self.log.first_from(position, EventKind.SCHEDULER_RESTARTED)
        while restart is not None and restart < until:
            if not self._came_back(node, restart, until):
                before = [commit_ms for commit_ms in commits if commit_ms <= events[restart].wall_ms]
                return max(first_ms, events[restart - 1].wall_ms, *before)
            restart = self.log.first_from(restart + 1, EventKind.SCHEDULER_RESTARTED)
        return self.end_ms if over is None else events[over].wall_ms

    def _came_back(self, node: str, restart: int, until: int) -> bool:
        events = self.log.events[restart:until]
        return any(
            stored.event.kind is EventKind.NODE_RESUMED and stored.event.node_id == node for stored in events
        )


def _trained(
    recorded: Sequence[RecordedInterval], first_ms: int, commits: Sequence[int], over_ms: int, *, seen: bool
) -> Intervals:
    """The recorded intervals, joined where they follow each other. Up to the end, if that was seen before the next record was due.

    A common checkpoint proves that its ranks trained until then, also one that did not come to record it.
    """
    begin_ms = recorded[0].begin_ms if recorded[0].is_first else first_ms
    found = [(begin_ms, recorded[0].end_ms)]
    for interval in recorded[1:]:
        if interval.begin_ms - found[-1][1] <= _APART_MS:
            found[-1] = (found[-1][0], max(found[-1][1], interval.end_ms))
        else:
            found.append((interval.begin_ms, interval.end_ms))
    end_ms = max([found[-1][1], *(commit_ms for commit_ms in commits if commit_ms <= over_ms)])
    next_was_not_due_yet = seen and 0 < over_ms - end_ms <= recorded[-1].due_ms
    found[-1] = (found[-1][0], over_ms if next_was_not_due_yet else end_ms)
    return intersection(tuple(found), ((0, over_ms),))
