"""The story told in time: what each node did when, what each failure cost, and how much of the time was useful.

It comes from the events, which the scheduler wrote, and from what the ranks noted of themselves (known.py). A death that the scheduler
saw begins when it was noticed; one that it did not see, because it was away itself, begins with the last sign of life.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from recovery.core.records import ActivityRecord, CheckpointRecord, EventKind, GenerationRecord
from recovery.report.event_index import Chapters
from recovery.report.node_spans import Doing, Lanes, Span
from recovery.report.stored import Stored, notes
from recovery.report.stored import story as all_events
from recovery.report.training_time import Known, Ranks, common, joined, length_ms
from recovery.store.reader import StoredEvent, Written


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
    unknown_ms: int = 0
    """Before all that: from the last moment at which all ranks are known to have trained to the notice."""

    @property
    def parts(self) -> tuple[int, ...]:
        """The times from the notice on, in their order."""
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
        return self.unknown_ms + sum(self.parts)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one generation's time was worth."""

    generation: int
    useful_ms: int
    """All ranks are known to have trained, and not what had been done before."""
    redone_ms: int
    """All ranks are known to have trained, and did steps again."""
    unknown_ms: int
    """After all had begun, nobody noted whether some rank trained."""
    reached: int
    """Highest step that a rank is known to have applied."""


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
    unknown_ms: int
    """In which nobody noted what at least one rank did. None of it counts as useful."""
    by_generation: tuple[Account, ...]

    @property
    def goodput(self) -> float:
        """Useful time by all time, 0 to 1."""
        return self.useful_ms / max(1, self.end_ms - self.begin_ms)


def tell(
    events: Sequence[StoredEvent],
    generations: Iterable[GenerationRecord],
    *,
    run: int,
    activity: Iterable[Written[ActivityRecord]] = (),
    saves: Iterable[CheckpointRecord] = (),
) -> Story:
    """Tell a run's story.

    Args:
        events: all, oldest first.
        generations: all of the job.
        run: which.
        activity: what the ranks noted of themselves.
        saves: checkpoints that are known, to tell how far their generations came.
    """
    of_run = [stored for stored in events if stored.event.run in (None, run)]
    known = Known(of_run, activity, run=run)
    chapters = known.chapters
    planned = {int(one.generation): one for one in generations if one.run == run}
    begun = {number: one.step for number, one in planned.items()}
    saved: dict[int, int] = {}
    for save in saves:
        if save.run == run:
            saved[int(save.generation)] = max(saved.get(int(save.generation), 0), save.step)
    reached = {number: _reached(known, one, saved.get(number, 0)) for number, one in planned.items()}
    redone = _redone(known, begun, reached)
    accounts = tuple(_account(one, known.ranks[one], redone.get(one, 0), reached) for one in known.ranks)
    lanes = Lanes(redone, known).follow(chapters.events)
    return Story(
        run=run,
        begin_ms=of_run[0].wall_ms if of_run else 0,
        end_ms=known.end_ms,
        lanes=lanes,
        plans=tuple(
            (stored.wall_ms, stored.event.generation or 0, stored.event.step or 0)
            for _, stored in chapters.all(EventKind.PLAN_MADE)
        ),
        commits=tuple(
            (stored.wall_ms, stored.event.step or 0)
            for _, stored in chapters.all(EventKind.CHECKPOINT_COMMITTED)
        ),
        outages=tuple(
            (chapters.events[position - 1].wall_ms, stored.wall_ms)
            for position, stored in chapters.all(EventKind.SCHEDULER_RESTARTED)
            if position
        ),
        recoveries=tuple(_recoveries(known, begun, reached)),
        useful_ms=sum(one.useful_ms for one in accounts),
        unknown_ms=_unknown(lanes),
        by_generation=accounts,
    )


def read_story(state: Stored, *, run: int | None = None) -> tuple[Story, tuple[str, ...]]:
    """Tell a run's story from the files; and whose notes could not be read, as sentences.

    Args:
        state: of the recovery path.
        run: which; None: the newest.
    """
    noted = notes(state.path)
    own = noted.by_node.values()
    story = tell(
        all_events(state.path),
        state.generations,
        run=run or state.job.run,
        activity=[one for of_node in own for one in of_node.activity],
        saves=[*state.checkpoints, *(one.record for of_node in own for one in of_node.checkpoints)],
    )
    return story, noted.unreadable


def _unknown(lanes: Mapping[str, Sequence[Span]]) -> int:
    found = (
        (span.begin_ms, span.end_ms)
        for spans in lanes.values()
        for span in spans
        if span.doing is Doing.UNKNOWN
    )
    return length_ms(joined(found))


def _reached(known: Known, generation: GenerationRecord, saved: int) -> int:
    """Highest step of a generation that somebody told: with heartbeats, when it stopped, with a save, or in a rank's own notes."""
    number = int(generation.generation)
    told = known.chapters.within(
        number, EventKind.NODE_READY, EventKind.CHECKPOINT_COMMITTED, EventKind.FIRST_STEP_DONE
    )
    noted = known.ranks[number].newest_step if number in known.ranks else 0
    return max(generation.ended_step, noted, saved, *(stored.event.step or 0 for stored in told), 0)


def _redone(known: Known, begun: Mapping[int, int], reached: Mapping[int, int]) -> dict[int, int]:
    """By generation: until when it did steps again, to its end if it did not come so far."""
    found: dict[int, int] = {}
    highest = 0
    for number, step in begun.items():
        ranks = known.ranks.get(number)
        if highest > step and ranks is not None:
            commits = known.chapters.within(number, EventKind.CHECKPOINT_COMMITTED)
            passed_ms = ranks.passed_ms(highest, commits)
            found[number] = ranks.over_ms if passed_ms is None else min(passed_ms, ranks.over_ms)
        highest = max(highest, reached[number])
    return found


def _account(number: int, ranks: Ranks, redone_ms: int, reached: Mapping[int, int]) -> Account:
    """Time from the last rank's first step (or the end of what was done again) to the end of the generation, where all are known to train."""
    together = ranks.together
    useful = common(together, ((redone_ms, ranks.over_ms),))
    begun_ms = ranks.over_ms if ranks.begun_ms is None else ranks.begun_ms
    unknown = joined({one for times in ranks.unknown.values() for one in times})
    return Account(
        generation=number,
        useful_ms=length_ms(useful),
        redone_ms=length_ms(together) - length_ms(useful),
        unknown_ms=length_ms(common(unknown, ((begun_ms, ranks.over_ms),))),
        reached=reached.get(number, 0),
    )


def _recoveries(known: Known, begun: Mapping[int, int], reached: Mapping[int, int]) -> Iterator[Recovery]:
    """From each interruption to the first steps of the next generation, if there was one."""
    chapters = known.chapters
    for position, stored in chapters.all(EventKind.GENERATION_INTERRUPTED):
        planned = chapters.next(position, EventKind.PLAN_MADE)
        if planned is None:
            continue
        plan = chapters.events[planned]
        before, following = stored.event.generation or 0, plan.event.generation or 0
        of_next = chapters.within(plan.event.generation or 0, *_BEGINNING)
        ends = (
            stored.wall_ms,
            _last_ms(chapters.events[position:planned], EventKind.NODE_ADMITTED, EventKind.NODE_RESUMED),
            plan.wall_ms,
            *(_last_ms(of_next, kind) for kind in _BEGINNING),
        )
        # A part that nobody told of takes no time.
        noticed_ms = _noticed_ms(chapters, position)
        marks = list(itertools.accumulate(ends, max, initial=noticed_ms))
        notice, window, start, rendezvous, load, first_step = (
            end - begin for begin, end in itertools.pairwise(marks)
        )
        yield Recovery(
            generation=stored.event.generation or 0,
            at_ms=stored.wall_ms,
            because=stored.event.reason,
            lost_steps=max(0, reached[before] - begun[following]) if {before, following} <= set(begun) else 0,
            notice_ms=notice,
            window_ms=window,
            start_ms=start,
            rendezvous_ms=rendezvous,
            load_ms=load,
            first_step_ms=first_step,
            unknown_ms=_unseen(known, before, noticed_ms),
        )


_BEGINNING = (EventKind.RENDEZVOUS_OPENED, EventKind.STATE_LOADED, EventKind.FIRST_STEP_DONE)
"""What happens in a generation after its plan, in this order."""


def _unseen(known: Known, generation: int, noticed_ms: int) -> int:
    """How long before the notice all ranks are known to have trained last; 0: until then, or they never did."""
    together = known.ranks[generation].together if generation in known.ranks else ()
    return max(0, noticed_ms - together[-1][1]) if together else 0


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
