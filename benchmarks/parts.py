"""What the time of a recovery was spent on: from the marks of the ranks' programs, and for this engine from its events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from killed_job import KilledJob
from rank_log import RankLog, Recovery
from rows import median

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.reader import read_events

PARTS = ("notice", "start", "imports", "take_over", "rendezvous", "load", "first_step")
"""In the order of time. notice: until the death was known; start: until a process was there for it; imports: until that had made them;
take_over: until it was let in and had a rank; rendezvous: until the last rank's world was formed; load: until the last rank had its
state and its first batch; first_step: until the last rank had applied it.

A part whose end nobody tells is part of the next one.
"""
_NOTICED = {EventKind.NODE_SUSPECTED.value, EventKind.NODE_LOST.value}
_ADMITTED = EventKind.NODE_ADMITTED.value
_TAKEN_OVER = "rank_taken_over"


class Happened(NamedTuple):
    """An event of the engine's store."""

    kind: str
    wall_ms: float


def events_of(recovery_path: Path) -> list[Happened]:
    """All events of a job; none where there is no store that can be read."""
    try:
        stored = read_events(recovery_path, limit=1_000_000)
    except RecoveryError:
        return []
    return [Happened(one.event.kind.value, one.wall_ms) for one in stored]


def parts_of(job: KilledJob, *, has_events: bool) -> list[dict[str, float]]:
    """The parts of each recovery, in ms."""
    events = events_of(job.recovery_path) if has_events else []
    return [durations(one, ends(one, job.log, events)) for one in job.recoveries]


def ends(one: Recovery, log: RankLog, events: list[Happened]) -> dict[str, float]:
    """When each part ended, as far as it was told."""
    within = [event for event in events if one.killed_ms <= event.wall_ms <= one.done_ms]
    marks = [mark for mark in log.marks if one.killed_ms <= mark.wall_ms <= one.done_ms]
    successor = log.holder(one.rank, one.done_ms)
    entered = [mark for mark in marks if mark.name == "entered" and mark.pid == successor]
    taken = [event.wall_ms for event in within if event.kind == _TAKEN_OVER] or [
        event.wall_ms for event in within if event.kind == _ADMITTED
    ]
    found = {
        "notice": [event.wall_ms for event in within if event.kind in _NOTICED][:1],
        "start": [mark.born_ms for mark in entered if mark.born_ms is not None],
        "imports": [mark.wall_ms for mark in entered],
        "take_over": taken,
        "rendezvous": [mark.wall_ms for mark in marks if mark.name == "world"],
        "load": [mark.wall_ms for mark in marks if mark.name == "loaded"],
        "first_step": [one.done_ms],
    }
    return {name: max(times) for name, times in found.items() if times}


def durations(one: Recovery, ends: dict[str, float]) -> dict[str, float]:
    """How long each part took. What came earlier than the part before it took no time of its own."""
    durations: dict[str, float] = {}
    reached = one.killed_ms
    for name in PARTS:
        if name in ends:
            durations[name] = max(0.0, ends[name] - reached)
            reached = max(reached, ends[name])
    return durations


def medians(parts: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Of each part over all recoveries; None: nobody told it."""
    return {name: median([one[name] for one in parts if name in one]) for name in PARTS}
