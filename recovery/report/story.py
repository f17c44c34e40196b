"""The story told in time: what each node did when, what each failure cost, and how much of the time was useful.

Everything comes from the events, which the scheduler wrote; what it did not see (the instant of a death) begins when it was noticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from recovery.core.records import EventKind, GenerationRecord
from recovery.report.lanes import Lanes, Span
from recovery.store.reader import StoredEvent


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One interruption, from its notice to the first step of all ranks, in milliseconds."""

    generation: int
    """That ended."""
    at_ms: int
    because: str
    lost_steps: int
    notice_ms: int
    """From the closed connection to the loss."""
    window_ms: int
    """Until the last missing node was let in."""
    start_ms: int
    """Until all were ready and the plan was made."""
    rendezvous_ms: int
    """Until rank 0 listened for the new world."""
    first_step_ms: int
    """Until the last rank had formed the world, loaded, and done its first step."""

    @property
    def total_ms(self) -> int:
        """All of it."""
        return self.notice_ms + self.window_ms + self.start_ms + self.rendezvous_ms + self.first_step_ms


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    run: int
    begin_ms: int
    end_ms: int
    lanes: dict[str, tuple[Span, ...]]
    """By node id, in the order of ranks."""
    plans: tuple[tuple[int, int, int], ...]
    """(when, generation, step) of each plan."""
    commits: tuple[tuple[int, int], ...]
    """(when, step) of each common checkpoint."""
    outages: tuple[tuple[int, int], ...]
    """(from, to) of each scheduler outage; it begins with the last word of the earlier life."""
    recoveries: tuple[Recovery, ...]
    useful_ms: int
    """In which all ranks trained, and not what they had done before."""

    @property
    def goodput(self) -> float:
        """Useful time by all time, 0 to 1."""
        return self.useful_ms / max(1, self.end_ms - self.begin_ms)


def tell(events: Sequence[StoredEvent], generations: Iterable[GenerationRecord], *, run: int) -> Story:
    """Tell a run's story.

    Args:
        events: all, oldest first.
        generations: all of the job.
        run: which.
    """
    of_run = [stored for stored in events if stored.event.run in (None, run)]
    of_generations = [one for one in generations if one.run == run]
    begin_ms = of_run[0].wall_ms if of_run else 0
    end_ms = of_run[-1].wall_ms if of_run else 0
    redone = _redone(of_run, of_generations)
    return Story(
        run=run,
        begin_ms=begin_ms,
        end_ms=end_ms,
        lanes=Lanes(redone).follow(of_run),
        plans=tuple(
            (stored.wall_ms, stored.event.generation or 0, stored.event.step or 0)
            for stored in _of(of_run, EventKind.PLAN_MADE)
        ),
        commits=tuple(
            (stored.wall_ms, stored.event.step or 0) for stored in _of(of_run, EventKind.CHECKPOINT_COMMITTED)
        ),
        outages=tuple(
            (before.wall_ms, stored.wall_ms)
            for before, stored in itertools.pairwise(of_run)
            if stored.event.kind is EventKind.SCHEDULER_RESTARTED
        ),
        recoveries=tuple(_recoveries(of_run, of_generations)),
        useful_ms=_useful(of_run, redone, end_ms),
    )


def _of(events: Iterable[StoredEvent], *kinds: EventKind) -> list[StoredEvent]:
    return [stored for stored in events if stored.event.kind in kinds]


def _reached(events: Sequence[StoredEvent], generation: GenerationRecord) -> int:
    """Highest step of a generation that somebody told: with heartbeats, or when it stopped."""
    told = [
        stored.event.step or 0
        for stored in _of(events, EventKind.NODE_READY, EventKind.CHECKPOINT_COMMITTED)
        if stored.event.generation == generation.generation
    ]
    return max(generation.ended_step, *told, 0)


def _redone(events: Sequence[StoredEvent], generations: Sequence[GenerationRecord]) -> dict[int, int]:
    """By generation: until when it did steps again. Known to the next common checkpoint."""
    found: dict[int, int] = {}
    reached = 0
    for one in generations:
        if reached > one.step:
            ends = [
                stored.wall_ms
                for stored in events
                if stored.event.generation == one.generation
                and (
                    (stored.event.kind in _TELL_STEPS and (stored.event.step or 0) >= reached)
                    or stored.event.kind is EventKind.GENERATION_INTERRUPTED
                )
            ]
            ends += [stored.wall_ms for stored in _of(events, EventKind.JOB_FINISHED)]
            found[int(one.generation)] = min(ends, default=0)
        reached = max(reached, _reached(events, one))
    return found


_TELL_STEPS = (EventKind.CHECKPOINT_COMMITTED, EventKind.FIRST_STEP_DONE)


def _recoveries(events: Sequence[StoredEvent], generations: Sequence[GenerationRecord]) -> Iterable[Recovery]:
    """From each interruption to the first steps of the next generation, if there was one."""
    known = {int(one.generation): one for one in generations}
    for number, stored in enumerate(events):
        if stored.event.kind is not EventKind.GENERATION_INTERRUPTED:
            continue
        ended = stored.event.generation or 0
        suspected = [
            one.wall_ms for one in _of(events[max(0, number - 8) : number], EventKind.NODE_SUSPECTED)
        ]
        after = events[number:]
        plans = _of(after, EventKind.PLAN_MADE)
        if not plans:
            continue
        plan = plans[0]
        of_next = [one for one in after if one.event.generation == plan.event.generation]
        let_in = [
            one.wall_ms
            for one in _of(after, EventKind.NODE_ADMITTED, EventKind.NODE_RESUMED)
            if one.wall_ms <= plan.wall_ms
        ]
        opened = [one.wall_ms for one in _of(of_next, EventKind.RENDEZVOUS_OPENED)]
        first = [one.wall_ms for one in _of(of_next, EventKind.FIRST_STEP_DONE)]
        in_ms = max(let_in, default=stored.wall_ms)
        opened_ms = opened[0] if opened else plan.wall_ms
        before, following = known.get(int(ended)), known.get(int(plan.event.generation or 0))
        yield Recovery(
            generation=ended,
            at_ms=stored.wall_ms,
            because=stored.event.reason,
            lost_steps=max(0, _reached(events, before) - following.step) if before and following else 0,
            notice_ms=stored.wall_ms - max(suspected, default=stored.wall_ms),
            window_ms=in_ms - stored.wall_ms,
            start_ms=plan.wall_ms - in_ms,
            rendezvous_ms=opened_ms - plan.wall_ms,
            first_step_ms=max(first, default=opened_ms) - opened_ms,
        )


def _useful(events: Sequence[StoredEvent], redone: dict[int, int], end_ms: int) -> int:
    """Time from the last rank's first step (or the end of what was done again) to the end of each generation."""
    useful = 0
    for plan in _of(events, EventKind.PLAN_MADE):
        number = plan.event.generation
        first = [
            one.wall_ms for one in _of(events, EventKind.FIRST_STEP_DONE) if one.event.generation == number
        ]
        over = [
            one.wall_ms
            for one in _of(
                events, EventKind.GENERATION_INTERRUPTED, EventKind.JOB_FINISHED, EventKind.JOB_FAILED
            )
            if one.wall_ms >= plan.wall_ms
        ]
        if first:
            begin_ms = max(*first, redone.get(number or 0, 0))
            useful += max(0, min(over, default=end_ms) - begin_ms)
    return useful
