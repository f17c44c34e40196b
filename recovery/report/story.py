"""The story told in time: what each node did when, what each failure cost, and how much of the time was useful.

Everything comes from the events, which the scheduler wrote; what it did not see (the instant of a death) begins when it was noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from recovery.core.records import EventKind, GenerationRecord
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


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, milliseconds since 1970 UTC."""

    doing: Doing
    begin_ms: int
    end_ms: int


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
        lanes=_lanes(of_run, redone, end_ms),
        plans=tuple(
            (stored.wall_ms, stored.event.generation or 0, stored.event.step or 0)
            for stored in _of(of_run, EventKind.PLAN_MADE)
        ),
        commits=tuple(
            (stored.wall_ms, stored.event.step or 0) for stored in _of(of_run, EventKind.CHECKPOINT_COMMITTED)
        ),
        outages=tuple(
            (before.wall_ms, stored.wall_ms)
            for before, stored in zip(of_run, of_run[1:], strict=False)
            if stored.event.kind is EventKind.SCHEDULER_RESTARTED
        ),
        recoveries=tuple(_recoveries(of_run, of_generations)),
        useful_ms=_useful(of_run, redone, end_ms),
    )


def _of(events: Iterable[StoredEvent], *kinds: EventKind) -> list[StoredEvent]:
    return [stored for stored in events if stored.event.kind in kinds]


def _redone(events: Sequence[StoredEvent], generations: Sequence[GenerationRecord]) -> dict[int, int]:
    """By generation: until when it did steps again. Known to the next common checkpoint."""
    found: dict[int, int] = {}
    reached = 0
    for one in generations:
        if reached > one.step:
            later = [
                stored.wall_ms
                for stored in _of(events, EventKind.CHECKPOINT_COMMITTED, EventKind.FIRST_STEP_DONE)
                if stored.event.generation == one.generation and (stored.event.step or 0) >= reached
            ]
            over = [
                stored.wall_ms
                for stored in _of(events, EventKind.GENERATION_INTERRUPTED, EventKind.JOB_FINISHED)
                if stored.event.generation in (None, one.generation)
            ]
            found[one.generation] = min([*later, *over], default=0)
        reached = max(reached, one.ended_step)
    return found


_DOING = {
    EventKind.NODE_ADMITTED: Doing.WAITING,
    EventKind.NODE_RESUMED: Doing.WAITING,
    EventKind.NODE_READY: Doing.WAITING,
    EventKind.NODE_LOST: Doing.LOST,
    EventKind.NODE_REFUSED: Doing.REFUSED,
    EventKind.FIRST_STEP_DONE: Doing.RUNNING,
}
_FOR_ALL = {EventKind.GENERATION_INTERRUPTED: Doing.WAITING, EventKind.PLAN_MADE: Doing.STARTING}


def _lanes(events: Sequence[StoredEvent], redone: dict[int, int], end_ms: int) -> dict[str, tuple[Span, ...]]:
    """Follow each node through the events."""
    ranks: dict[str, int] = {}
    doing: dict[str, tuple[Doing, int]] = {}
    spans: dict[str, list[Span]] = {}

    def turn(node: str, to: Doing | None, at_ms: int) -> None:
        before = doing.pop(node, None)
        if before is not None and at_ms > before[1]:
            spans.setdefault(node, []).append(Span(doing=before[0], begin_ms=before[1], end_ms=at_ms))
        if to is not None:
            doing[node] = (to, at_ms)

    for stored in events:
        event, node = stored.event, stored.event.node_id
        if node is not None and event.rank is not None:
            ranks[node] = event.rank
        if event.kind in _FOR_ALL:
            for other, (now, _) in list(doing.items()):
                if now not in (Doing.LOST, Doing.REFUSED):
                    turn(other, _FOR_ALL[event.kind], stored.wall_ms)
        elif node is not None and event.kind in (EventKind.NODE_LEFT, EventKind.NODE_FAILED):
            turn(node, None, stored.wall_ms)
        elif node is not None and event.kind in _DOING:
            if event.kind is EventKind.NODE_RESUMED and doing.get(node, (None, 0))[0] is Doing.RUNNING:
                continue  # only its connection is new
            if event.kind is EventKind.NODE_REFUSED and doing.get(node, (None, 0))[0] is not Doing.LOST:
                continue  # somebody asked for an id that is held
            turn(node, _DOING[event.kind], stored.wall_ms)
            until_ms = redone.get(event.generation or 0, 0)
            if event.kind is EventKind.FIRST_STEP_DONE and until_ms > stored.wall_ms:
                doing[node] = (Doing.REDOING, stored.wall_ms)
                turn(node, Doing.RUNNING, until_ms)
    for node in list(doing):
        turn(node, None, end_ms)
    return {
        node: tuple(spans[node]) for node in sorted(spans, key=lambda node: (ranks.get(node, 1 << 30), node))
    }


def _recoveries(events: Sequence[StoredEvent], generations: Sequence[GenerationRecord]) -> Iterable[Recovery]:
    """From each interruption to the first steps of the next generation, if there was one."""
    steps = {one.generation: one for one in generations}
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
        before, following = steps.get(ended), steps.get(plan.event.generation or 0)
        yield Recovery(
            generation=ended,
            at_ms=stored.wall_ms,
            because=stored.event.reason,
            lost_steps=max(0, before.ended_step - following.step) if before and following else 0,
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
            begin_ms = max(max(first), redone.get(number or 0, 0))
            useful += max(0, min(over, default=end_ms) - begin_ms)
    return useful
