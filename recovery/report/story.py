"""The story told in time: what each node did when, what each failure cost, and how much of the time was useful.

Everything comes from the events, which the scheduler wrote; what it did not see (the instant of a death) begins when it was noticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from recovery.core.records import EventKind, GenerationRecord
from recovery.report.chapters import Chapters
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
    load_ms: int
    """Until the last rank had formed the world and loaded its checkpoint."""
    first_step_ms: int
    """Until the last rank had done its first step."""

    @property
    def parts(self) -> tuple[int, ...]:
        """The times above, in their order."""
        return (
            self.notice_ms,
            self.window_ms,
            self.start_ms,
            self.rendezvous_ms,
            self.load_ms,
            self.first_step_ms,
        )

    @property
    def total_ms(self) -> int:
        """All of it."""
        return sum(self.parts)


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
    of_generations = {int(one.generation): one for one in generations if one.run == run}
    chapters = Chapters(of_run)
    begin_ms = of_run[0].wall_ms if of_run else 0
    end_ms = of_run[-1].wall_ms if of_run else 0
    redone = _redone(chapters, of_generations.values(), end_ms)
    return Story(
        run=run,
        begin_ms=begin_ms,
        end_ms=end_ms,
        lanes=Lanes(redone).follow(of_run),
        plans=tuple(
            (stored.wall_ms, stored.event.generation or 0, stored.event.step or 0)
            for _, stored in chapters.all(EventKind.PLAN_MADE)
        ),
        commits=tuple(
            (stored.wall_ms, stored.event.step or 0)
            for _, stored in chapters.all(EventKind.CHECKPOINT_COMMITTED)
        ),
        outages=tuple(
            (of_run[position - 1].wall_ms, stored.wall_ms)
            for position, stored in chapters.all(EventKind.SCHEDULER_RESTARTED)
            if position
        ),
        recoveries=tuple(_recoveries(chapters, of_generations)),
        useful_ms=_useful(chapters, redone, end_ms),
    )


def _reached(chapters: Chapters, generation: GenerationRecord) -> int:
    """Highest step of a generation that somebody told: with heartbeats, or when it stopped."""
    told = chapters.within(generation.generation, EventKind.NODE_READY, EventKind.CHECKPOINT_COMMITTED)
    return max(generation.ended_step, *(stored.event.step or 0 for stored in told), 0)


def _redone(chapters: Chapters, generations: Iterable[GenerationRecord], end_ms: int) -> dict[int, int]:
    """By generation: until when it did steps again, to the end of the story if nothing says otherwise. Known to the next common checkpoint."""
    found: dict[int, int] = {}
    finished = [stored.wall_ms for _, stored in chapters.all(EventKind.JOB_FINISHED)]
    reached = 0
    for one in generations:
        if reached > one.step:
            of_it = chapters.within(one.generation, *_TELL_STEPS, EventKind.GENERATION_INTERRUPTED)
            ends = [
                stored.wall_ms
                for stored in of_it
                if stored.event.kind not in _TELL_STEPS or (stored.event.step or 0) >= reached
            ]
            found[int(one.generation)] = min(ends + finished, default=end_ms)
        reached = max(reached, _reached(chapters, one))
    return found


_TELL_STEPS = (EventKind.CHECKPOINT_COMMITTED, EventKind.FIRST_STEP_DONE)


def _recoveries(chapters: Chapters, generations: Mapping[int, GenerationRecord]) -> Iterator[Recovery]:
    """From each interruption to the first steps of the next generation, if there was one."""
    for position, stored in chapters.all(EventKind.GENERATION_INTERRUPTED):
        planned = chapters.next(position, EventKind.PLAN_MADE)
        if planned is None:
            continue
        plan = chapters.events[planned]
        before = generations.get(stored.event.generation or 0)
        following = generations.get(plan.event.generation or 0)
        of_next = chapters.within(plan.event.generation or 0, *_BEGINNING)
        ends = (
            stored.wall_ms,
            _last_ms(chapters.events[position:planned], EventKind.NODE_ADMITTED, EventKind.NODE_RESUMED),
            plan.wall_ms,
            *(_last_ms(of_next, kind) for kind in _BEGINNING),
        )
        # A part that nobody told of takes no time.
        marks = list(itertools.accumulate(ends, max, initial=_noticed_ms(chapters, position)))
        notice, window, start, rendezvous, load, first_step = (
            end - begin for begin, end in itertools.pairwise(marks)
        )
        yield Recovery(
            generation=stored.event.generation or 0,
            at_ms=stored.wall_ms,
            because=stored.event.reason,
            lost_steps=max(0, _reached(chapters, before) - following.step) if before and following else 0,
            notice_ms=notice,
            window_ms=window,
            start_ms=start,
            rendezvous_ms=rendezvous,
            load_ms=load,
            first_step_ms=first_step,
        )


_BEGINNING = (EventKind.RENDEZVOUS_OPENED, EventKind.STATE_LOADED, EventKind.FIRST_STEP_DONE)
"""What happens in a generation after its plan, in this order."""


def _noticed_ms(chapters: Chapters, interrupted: int) -> int:
    """When the connection closed whose node's loss ended the generation; else when it ended."""
    now_ms, before = chapters.events[interrupted].wall_ms, chapters.events[max(0, interrupted - 1)]
    begun = chapters.last(interrupted, EventKind.PLAN_MADE)
    if before.event.kind is not EventKind.NODE_LOST or begun is None:
        return now_ms
    of_node = (
        stored
        for stored in chapters.events[begun:interrupted]
        if stored.event.node_id == before.event.node_id
    )
    return _last_ms(of_node, EventKind.NODE_SUSPECTED) or now_ms


def _last_ms(events: Iterable[StoredEvent], *kinds: EventKind) -> int:
    """When the last event of these kinds was told; 0: never."""
    return max((stored.wall_ms for stored in events if stored.event.kind in kinds), default=0)


def _useful(chapters: Chapters, redone: Mapping[int, int], end_ms: int) -> int:
    """Time from the last rank's first step (or the end of what was done again) to the end of each generation."""
    useful = 0
    for position, plan in chapters.all(EventKind.PLAN_MADE):
        number = plan.event.generation or 0
        first_ms = _last_ms(chapters.within(number, EventKind.FIRST_STEP_DONE), EventKind.FIRST_STEP_DONE)
        if first_ms:
            ended = chapters.next(position, *_ENDS)
            over_ms = end_ms if ended is None else chapters.events[ended].wall_ms
            useful += max(0, over_ms - max(first_ms, redone.get(number, 0)))
    return useful


_ENDS = (EventKind.GENERATION_INTERRUPTED, EventKind.JOB_FINISHED, EventKind.JOB_FAILED)
