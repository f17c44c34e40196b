"""What each interruption of a run cost, part by part: from its notice to the first step of all ranks of the next generation."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from recovery.core.ids import Incarnation, NodeId
from recovery.core.records import JOB_STOPPED, NO_STEP, STARTED_AGAIN, STARTS_AGAIN, EventKind
from recovery.report.event_index import EventIndex
from recovery.report.intervals import difference, intersection, length_ms
from recovery.report.training_time import TrainingTimes
from recovery.store.reader import StoredEvent

CAUSES = {
    "node_lost": "a process died, or was not heard any more",
    "script": "the script's own code raised",
    "node_left": "a rank was handed over, or its process was asked to end",
    "checkpoint": "a checkpoint of the plan was not usable",
    "hang": "a rank made no step for MS_STEP_TIMEOUT",
    "replicas": "ranks that must hold the same did not",
    "stopped": "the job was stopped in order, and somebody has started it again",
    "other": "none of these; `recovery timeline` says which",
}
"""Why an interruption was, in a word."""
PARTS = ("notice", "window", "start", "rendezvous", "load", "first step")
"""Of an interruption, in their order: see the fields of `Recovery`."""
_CAUSES_BY_KIND = {
    EventKind.NODE_LOST: "node_lost",
    EventKind.NODE_FAILED: "script",
    EventKind.NODE_LEFT: "node_left",
    EventKind.CHECKPOINT_INVALID: "checkpoint",
    EventKind.REPLICAS_DIFFER: "replicas",
}

_Process = tuple[NodeId | None, Incarnation | None]


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One interruption, from its notice to the first step of all ranks, in milliseconds."""

    generation: int
    """That ended."""
    at_ms: int
    because: str
    lost_steps: int
    """Done again, as far as anybody has said how far the generation came."""
    notice_ms: int
    """From the closed connection, or the last step of a rank that hung, to the loss."""
    window_ms: int
    """Until the last missing node was let in: a new process, or one that was cut off."""
    start_ms: int
    """Until all were ready and the plan was made; with it the start of survivors that start their script again."""
    rendezvous_ms: int
    """Until rank 0 listened for the new world."""
    load_ms: int
    """Until the last rank had formed the world and loaded its checkpoint."""
    first_step_ms: int
    """Until the last rank had done its first step."""
    paused_ms: int = 0
    """Meanwhile the job was stopped on purpose: in none of the parts."""
    unknown_ms: int = 0
    """Before all that: from the last moment at which all ranks are known to have trained to the notice."""
    lost_steps_known: bool = True
    """A rank that stopped has said how far it had come. Else all that did have died: what they last noted is up to a heartbeat old."""
    is_resumption: bool = False
    """Nothing failed: the job was stopped in order, and somebody has started it again."""
    cause: str = ""
    """One of `CAUSES`, as far as the events say."""
    marks_ms: tuple[int, ...] = ()
    """When each of its `PARTS` began, and when the last one ended, milliseconds since 1970 UTC: with the time in which the job was stopped on purpose."""

    @property
    def because_text(self) -> str:
        """For people."""
        return f"started again: {self.because}" if self.is_resumption else self.because

    @property
    def lost_steps_text(self) -> str:
        """For people."""
        return steps_text(self.lost_steps, is_known=self.lost_steps_known)

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


def steps_text(steps: int, *, is_known: bool) -> str:
    """So many steps, or at least as many."""
    if is_known:
        return str(steps)
    return f"at least {steps}" if steps else "unknown"


def recoveries(
    times: TrainingTimes,
    begun: Mapping[int, int],
    reached: Mapping[int, int],
    stopped: Collection[int],
    causes: Mapping[int, str],
) -> Iterator[Recovery]:
    """Every interruption that a next generation followed.

    Args:
        times: of the run.
        begun: by generation, the step at which it began.
        reached: by generation, the highest step that a rank is known to have applied.
        stopped: generations that a rank has outlived, and said how far it had come.
        causes: by generation, why it ended as far as that became known: behind a broken data plane a launcher may have seen a process killed.
    """
    log, pauses = times.log, times.pauses
    raised = {
        (stored.event.node_id, stored.event.incarnation) for _, stored in log.of_kind(EventKind.NODE_FAILED)
    }
    for position, stored in log.of_kind(EventKind.GENERATION_INTERRUPTED):
        planned = log.first_from(position, EventKind.PLAN_MADE)
        if planned is None:
            continue
        plan = log.events[planned]
        before, following = stored.event.generation or 0, plan.event.generation or 0
        of_next = log.in_generation(plan.event.generation or 0, *_BEGINNING)
        ends = (
            stored.wall_ms,
            _let_in_ms(log.events[position:planned]),
            plan.wall_ms,
            *(_last_first_ms(of_next, kind) for kind in _BEGINNING),
        )
        is_resumption = _is_resumption(log, position, planned)
        # A part whose end is not in the event log takes no time.
        noticed_ms = _noticed_ms(times, position)
        marks = list(itertools.accumulate(ends, max, initial=noticed_ms))
        notice, window, start, rendezvous, load, first_step = (
            length_ms(difference((part,), pauses)) for part in itertools.pairwise(marks)
        )
        yield Recovery(
            generation=stored.event.generation or 0,
            at_ms=stored.wall_ms,
            because=causes.get(before) or stored.event.reason,
            lost_steps=max(0, reached[before] - begun[following]) if {before, following} <= set(begun) else 0,
            notice_ms=notice,
            window_ms=window,
            start_ms=start,
            rendezvous_ms=rendezvous,
            load_ms=load,
            first_step_ms=first_step,
            paused_ms=length_ms(intersection(((marks[0], marks[-1]),), pauses)),
            unknown_ms=_unknown_ms(times, before, noticed_ms),
            lost_steps_known=before in stopped,
            is_resumption=is_resumption,
            cause="stopped" if is_resumption else _cause(log, position, planned, raised),
            marks_ms=tuple(marks),
        )


def _is_resumption(log: EventIndex, interrupted: int, planned: int) -> bool:
    """Did a generation end because its job was stopped, or a node left in order and the scheduler stopped too before the next one?"""
    if log.events[interrupted].event.reason.startswith(JOB_STOPPED):
        return True
    left = log.events[max(0, interrupted - 1)].event.kind is EventKind.NODE_LEFT
    stopped = log.first_from(interrupted, EventKind.SCHEDULER_STOPPED)
    return left and stopped is not None and stopped < planned


def _cause(log: EventIndex, interrupted: int, planned: int, raised: Collection[_Process]) -> str:
    """By what was written right before the generation's end, or else first behind it: the data plane may break before anybody knows why."""
    if log.events[interrupted].event.details == NO_STEP:
        return "hang"
    for stored in (log.events[max(0, interrupted - 1)], *log.events[interrupted:planned]):
        event = stored.event
        cause = _CAUSES_BY_KIND.get(event.kind, "") if event.details != STARTS_AGAIN else ""
        if cause == "node_lost" and (event.node_id, event.incarnation) in raised:
            return "script"
        if cause:
            return cause
    return "other"


_BEGINNING = (EventKind.RENDEZVOUS_OPENED, EventKind.STATE_LOADED, EventKind.FIRST_STEP_DONE)
"""What happens in a generation after its plan, in this order."""


def _unknown_ms(times: TrainingTimes, generation: int, noticed_ms: int) -> int:
    """How long before the notice all ranks are known to have trained last; 0: until then, or they never did."""
    together = times.generations[generation].together if generation in times.generations else ()
    return max(0, noticed_ms - together[-1][1]) if together else 0


def _noticed_ms(times: TrainingTimes, interrupted: int) -> int:
    """Since when the rank hung, or when the connection closed, whose loss ended the generation; else when it ended."""
    log = times.log
    now_ms, before = log.events[interrupted].wall_ms, log.events[max(0, interrupted - 1)]
    generation = times.generations.get(log.events[interrupted].event.generation or 0)
    if generation is not None and generation.hung_ms is not None:
        return min(now_ms, generation.hung_ms)
    begun = log.last_before(interrupted, EventKind.PLAN_MADE)
    if before.event.kind is not EventKind.NODE_LOST or begun is None:
        return now_ms
    of_node = (
        stored for stored in log.events[begun:interrupted] if stored.event.node_id == before.event.node_id
    )
    return _last_ms(of_node, EventKind.NODE_SUSPECTED) or now_ms


def _last_first_ms(events: Iterable[StoredEvent], kind: EventKind) -> int:
    """When the last node did this for the first time; 0: nobody did. A scheduler that starts again is told once more, and writes it again."""
    firsts: dict[str | None, int] = {}
    for stored in events:
        if stored.event.kind is kind:
            firsts.setdefault(stored.event.node_id, stored.wall_ms)
    return max(firsts.values(), default=0)


def _let_in_ms(events: Iterable[StoredEvent]) -> int:
    """When the last node was let in. A survivor that started its program again was not kept out: that is a start."""
    missing = (stored for stored in events if stored.event.reason != STARTED_AGAIN)
    return _last_ms(missing, EventKind.NODE_ADMITTED, EventKind.NODE_RESUMED)


def _last_ms(events: Iterable[StoredEvent], *kinds: EventKind) -> int:
    """When the last event of these kinds was written; 0: there is none."""
    return max((stored.wall_ms for stored in events if stored.event.kind in kinds), default=0)
