"""A run in time: what each node did when, what each failure cost, and how much of the time was useful.

It is made of the events, which the scheduler wrote, and of what the ranks recorded of themselves (training_time.py). A death that the
scheduler saw begins when it was noticed. One that it did not see, because it was away itself, begins when all ranks are last known to
have trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from recovery.core.policy.history import OF_SAVES
from recovery.core.policy.history import begins_later as begins_later_by
from recovery.core.records import (
    NO_STEP,
    ActivityRecord,
    CheckpointRecord,
    EventKind,
    GenerationRecord,
    JobState,
)
from recovery.report.event_index import EventIndex
from recovery.report.intervals import intersection, length_ms, union
from recovery.report.node_spans import Doing, NodeSpans, Span
from recovery.report.recoveries import Recovery, recoveries, steps_text
from recovery.report.stored import Stored, event_log, notes
from recovery.report.training_time import GenerationTimes, TrainingTimes
from recovery.store.reader import StoredEvent, Written


class GenerationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one generation's time was worth."""

    generation: int
    useful_ms: int
    """All ranks are known to have trained, and not what had been done before."""
    redone_ms: int
    """All ranks are known to have trained, and did steps again."""
    unknown_ms: int
    """After all had begun, nobody recorded whether some rank trained."""
    reached: int
    """Highest step that a rank is known to have applied."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One run. The field names are keys of `recovery timeline --json`; where they differ, the key is named."""

    run: int
    begin_ms: int
    end_ms: int
    spans: dict[str, tuple[Span, ...]] = msgspec.field(name="lanes")
    """By node id, in the order of ranks."""
    plans: tuple[tuple[int, int, int], ...]
    """(when, generation, step) of each plan."""
    commits: tuple[tuple[int, int], ...]
    """(when, step) of each common checkpoint."""
    outages: tuple[tuple[int, int], ...]
    """(from, to) of each scheduler outage; it begins with the last event of the earlier incarnation."""
    recoveries: tuple[Recovery, ...]
    useful_ms: int
    """In which all ranks trained, and not what they had done before."""
    paused_ms: int
    """In which the job was stopped on purpose: from the end of its processes to its next start."""
    unknown_ms: int
    """In which nobody recorded what at least one node did. None of it counts as useful."""
    by_generation: tuple[GenerationSummary, ...]
    tells_steps: bool = True
    """A rank has told of a step. False: its script knows nothing of recovery, or has made none, and nobody knows how much of the time was useful."""
    began_ms: int = 0
    """When all ranks had done their first step, for the first time; 0: they have not."""
    trained_ms: int = 0
    """Until when all ranks are known to have trained last; 0: they never did."""
    hangs: int = 0
    """How often a rank was connected and made no step for MS_STEP_TIMEOUT."""
    mismatches: int = 0
    """How often ranks that must hold the same did not (`replicas_differ`)."""
    stragglers: int = 0
    """How often a rank was found to be slow (`straggler_found`)."""
    begins_later: bool = False
    """Its oldest events were deleted (`history_thinned`): it begins with the first generation of which all are there."""

    @property
    def goodput(self) -> float:
        """Useful time by all time in which the job was meant to run, 0 to 1."""
        return self.useful_ms / max(1, self.end_ms - self.begin_ms - self.paused_ms)

    @property
    def known_goodput(self) -> float | None:
        """The same; None: nobody knows."""
        return self.goodput if self.tells_steps else None

    @property
    def goodput_text(self) -> str:
        """The same for people."""
        return f"{self.goodput:.1%}" if self.tells_steps else "unknown (no rank has told of a step)"

    @property
    def resumptions(self) -> int:
        """How often the job was stopped in order and started again."""
        return sum(recovery.is_resumption for recovery in self.recoveries)

    @property
    def failures(self) -> int:
        """How many of the recoveries a failure has made necessary."""
        return len(self.recoveries) - self.resumptions

    @property
    def lost_steps_text(self) -> str:
        """How many steps were done again in all, for people."""
        is_known = all(recovery.lost_steps_known for recovery in self.recoveries)
        return steps_text(sum(recovery.lost_steps for recovery in self.recoveries), is_known=is_known)

    @property
    def done_again_text(self) -> str:
        """What this number counts, behind it."""
        return "step done again" if self.lost_steps_text == "1" else "steps done again"

    def for_json(self) -> dict[str, Any]:
        """All of it by its keys in JSON, with the goodput."""
        return {**msgspec.to_builtins(self), "goodput": self.known_goodput}


def make_timeline(  # noqa: PLR0913 - each is read from another place
    events: Sequence[StoredEvent],
    generations: Iterable[GenerationRecord],
    *,
    run: int,
    activity: Iterable[Written[ActivityRecord]] = (),
    saves: Iterable[CheckpointRecord] = (),
    finished_at: int = 0,
    draws: bool = True,
) -> Timeline:
    """Make a run's timeline from records.

    Args:
        events: all, oldest first.
        generations: all of the job.
        run: which.
        activity: what the ranks recorded of themselves.
        saves: checkpoints that are known: they say how far their generations came.
        finished_at: the step at which all ranks were done; 0: they are not, or nobody knows.
        draws: False: its spans, more than half of the work, are wanted by nobody. There are none then, and no `unknown_ms`.
    """
    of_run: Sequence[StoredEvent] = [stored for stored in events if stored.event.run in (None, run)]
    planned = {int(record.generation): record for record in generations if record.run == run}
    begins_later = any(begins_later_by(stored.event) for stored in events) and not _is_whole(events, run)
    if begins_later:
        of_run = _from_first_whole(of_run, planned)
    activity = tuple(activity)
    times = TrainingTimes(of_run, activity, run=run)
    log = times.log
    begun = {number: one.step for number, one in planned.items()}
    saved = _saved(saves, run)
    reached = {number: _reached(times, record, saved.get(number, 0)) for number, record in planned.items()}
    if reached:
        reached[max(reached)] = max(reached[max(reached)], finished_at)
    redone = _redone(times, begun, reached)
    causes = {number: one.ended for number, one in planned.items()}
    stopped = _stopped(log, begun, activity, run)
    summaries = tuple(
        _summary(number, times.generations[number], redone.get(number, 0), reached)
        for number in times.generations
    )
    spans = NodeSpans(redone, times).advance(log.events) if draws else {}
    return Timeline(
        run=run,
        begin_ms=of_run[0].wall_ms if of_run else 0,
        end_ms=times.end_ms,
        spans=spans,
        plans=tuple(
            (stored.wall_ms, stored.event.generation or 0, stored.event.step or 0)
            for _, stored in log.of_kind(EventKind.PLAN_MADE)
        ),
        commits=_commits(log),
        outages=_outages(log),
        recoveries=tuple(recoveries(times, begun, reached, stopped, causes)),
        useful_ms=sum(summary.useful_ms for summary in summaries),
        paused_ms=length_ms(times.pauses),
        unknown_ms=_unknown_ms(spans),
        by_generation=summaries,
        began_ms=times.began_ms,
        trained_ms=times.trained_ms,
        hangs=sum(
            stored.event.details == NO_STEP for _, stored in log.of_kind(EventKind.GENERATION_INTERRUPTED)
        ),
        mismatches=len([*log.of_kind(EventKind.REPLICAS_DIFFER)]),
        stragglers=len([*log.of_kind(EventKind.STRAGGLER_FOUND)]),
        tells_steps=any(times.generations[number].first_steps for number in times.generations),
        begins_later=begins_later,
    )


def _commits(log: EventIndex) -> tuple[tuple[int, int], ...]:
    of_kind = log.of_kind(EventKind.CHECKPOINT_COMMITTED)
    return tuple((stored.wall_ms, stored.event.step or 0) for _, stored in of_kind)


def _saved(saves: Iterable[CheckpointRecord], run: int) -> dict[int, int]:
    """By generation, the newest step that is known to be saved."""
    saved: dict[int, int] = {}
    for save in saves:
        if save.run == run:
            saved[int(save.generation)] = max(saved.get(int(save.generation), 0), save.step)
    return saved


def _outages(log: EventIndex) -> tuple[tuple[int, int], ...]:
    """From the last event of one process of the scheduler to the first of the next."""
    return tuple(
        (log.events[position - 1].wall_ms, stored.wall_ms)
        for position, stored in log.of_kind(EventKind.SCHEDULER_RESTARTED)
        if position
    )


def _is_whole(events: Sequence[StoredEvent], run: int) -> bool:
    """Did no event of this run go when the oldest were deleted? One that would have gone first is still there, from before the run.

    The newest of a kind and a node stays however old it is: it proves nothing.
    """
    newest = {(stored.event.kind, stored.event.node_id): stored.sequence for stored in events}
    for stored in events:
        event = stored.event
        if event.run == run:
            return False
        if event.kind not in OF_SAVES and newest[event.kind, event.node_id] != stored.sequence:
            return True
    return False


def _from_first_whole(events: Sequence[StoredEvent], planned: Collection[int]) -> Sequence[StoredEvent]:
    """The events from the plan on behind which no plan is missing."""
    plans = {
        int(stored.event.generation or 0): position
        for position, stored in enumerate(events)
        if stored.event.kind is EventKind.PLAN_MADE
    }
    begin = 0
    for number in sorted(planned, reverse=True):
        if number not in plans:
            break
        begin = plans[number]
    return events[begin:]


def read_timeline(state: Stored, *, run: int | None = None) -> tuple[Timeline, tuple[str, ...]]:
    """Make a run's timeline from the files; and whose records could not be read, as sentences.

    Args:
        state: of the recovery path.
        run: which; None: the newest.
    """
    run = run or state.job.run
    is_finished = run == state.job.run and state.job.state is JobState.FINISHED
    finished_at = max((node.step for node in state.workers), default=0) if is_finished else 0
    return timeline_of_files(
        state.path, state.generations, run=run, saves=state.checkpoints, finished_at=finished_at
    )


def timeline_of_files(
    path: Path,
    generations: Iterable[GenerationRecord],
    *,
    run: int,
    saves: Iterable[CheckpointRecord] = (),
    finished_at: int = 0,
    draws: bool = True,
) -> tuple[Timeline, tuple[str, ...]]:
    """The same, where the scheduler's other records are at hand. Arguments as of `make_timeline`; errors as of `event_log`."""
    found = notes(path)
    own = found.by_node.values()
    timeline = make_timeline(
        event_log(path),
        generations,
        run=run,
        activity=[piece for of_node in own for piece in of_node.activity],
        saves=[*saves, *(save.record for of_node in own for save in of_node.checkpoints)],
        finished_at=finished_at,
        draws=draws,
    )
    return timeline, found.unreadable


def _unknown_ms(by_node: Mapping[str, Sequence[Span]]) -> int:
    found = (
        (span.begin_ms, span.end_ms)
        for spans in by_node.values()
        for span in spans
        if span.doing is Doing.UNKNOWN
    )
    return length_ms(union(found))


def _reached(times: TrainingTimes, generation: GenerationRecord, saved: int) -> int:
    """Highest step of a generation that anybody named: with a heartbeat, when it stopped, with a save, or in a rank's own records."""
    number = int(generation.generation)
    logged = times.log.in_generation(
        number, EventKind.NODE_READY, EventKind.CHECKPOINT_COMMITTED, EventKind.FIRST_STEP_DONE
    )
    recorded = times.generations[number].newest_step if number in times.generations else 0
    return max(generation.ended_step, recorded, saved, *(stored.event.step or 0 for stored in logged), 0)


def _stopped(
    log: EventIndex, begun: Mapping[int, int], activity: Iterable[Written[ActivityRecord]], run: int
) -> set[int]:
    """The generations that a rank has outlived, and said how far it had come: in its own notes, to the scheduler when it was ready again, or by the save before it was stopped."""
    noted = {
        int(one.record.generation) for one in activity if one.record.run == run and not one.record.due_ms
    }
    said = {
        number
        for number, step in begun.items()
        for stored in log.in_generation(number, EventKind.NODE_READY)
        if (stored.event.step or 0) >= max(1, step)
    }
    saved = {
        number
        for number in begun
        for stored in log.in_generation(number, EventKind.DRAIN_ENDED)
        for commit in log.in_generation(number, EventKind.CHECKPOINT_COMMITTED)
        if stored.event.step == commit.event.step
    }
    return noted | said | saved


def _redone(times: TrainingTimes, begun: Mapping[int, int], reached: Mapping[int, int]) -> dict[int, int]:
    """By generation: until when it did steps again, to its end if it did not come so far."""
    found: dict[int, int] = {}
    highest = 0
    for number, step in begun.items():
        generation = times.generations.get(number)
        if highest > step and generation is not None:
            commits = times.log.in_generation(number, EventKind.CHECKPOINT_COMMITTED)
            passed_ms = generation.passed_ms(highest, commits)
            found[number] = generation.over_ms if passed_ms is None else min(passed_ms, generation.over_ms)
        highest = max(highest, reached[number])
    return found


def _summary(
    number: int, times: GenerationTimes, redone_ms: int, reached: Mapping[int, int]
) -> GenerationSummary:
    """The time in which all are known to have trained, split at the end of what was done again."""
    together = times.together
    useful = intersection(together, ((redone_ms, times.over_ms),))
    begun_ms = times.over_ms if times.begun_ms is None else times.begun_ms
    unknown = union({interval for of_node in times.unknown.values() for interval in of_node})
    return GenerationSummary(
        generation=number,
        useful_ms=length_ms(useful),
        redone_ms=length_ms(together) - length_ms(useful),
        unknown_ms=length_ms(intersection(unknown, ((begun_ms, times.over_ms),))),
        reached=reached.get(number, 0),
    )
