"""A run as a trace: a track for each rank, one for what interrupted them, one for the scheduler; every event is a mark on its track.

The form is the Trace Event Format as JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from recovery.core.policy.ranks import first_id
from recovery.core.records import EventRecord
from recovery.report.node_spans import Span, by_slot
from recovery.report.recoveries import PARTS, Recovery
from recovery.report.timeline import Timeline
from recovery.store.reader import StoredEvent

_US = 1_000
"""Times are microseconds since 1970 UTC."""
_JOB, _RANKS = 1, 2
"""Groups of tracks, which the format calls processes."""
_SCHEDULER, _RECOVERIES, _FIRST_RANK = 1, 2, 1
"""Tracks of them."""
_TOLD = ("generation", "step", "rank", "node_id", "incarnation", "reason", "details")
"""Of an event."""


def trace(timeline: Timeline, events: Iterable[StoredEvent], *, job: str) -> bytes:
    """Make the file's content.

    Args:
        timeline: of the run.
        events: of its job, oldest first; those of other runs are left out.
        job: its id.
    """
    rows = by_slot(timeline.spans)
    tracks = {slot: number for number, slot in enumerate(rows, _FIRST_RANK)}
    found = [
        *_names(f"job {job[:8]}, run {timeline.run}", tracks),
        *_ranks(rows, tracks),
        *_recoveries(timeline.recoveries),
        *_of_scheduler(timeline),
        *_marks(timeline, events, tracks),
    ]
    told = {"job": job, "run": timeline.run, "goodput": timeline.known_goodput}
    return msgspec.json.encode({"displayTimeUnit": "ms", "otherData": told, "traceEvents": found})


def _names(title: str, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    for group, name in ((_JOB, title), (_RANKS, "ranks")):
        yield {"ph": "M", "name": "process_name", "pid": group, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": group, "args": {"sort_index": group}}
    named = [(_JOB, _SCHEDULER, "scheduler"), (_JOB, _RECOVERIES, "recoveries")]
    for group, track, name in (*named, *((_RANKS, track, slot) for slot, track in tracks.items())):
        of_track = {"ph": "M", "pid": group, "tid": track}
        yield {**of_track, "name": "thread_name", "args": {"name": name}}
        yield {**of_track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _slice(track: tuple[int, int], name: str, begin_ms: int, end_ms: int, **told: Any) -> dict[str, Any]:
    times = {"ts": begin_ms * _US, "dur": max(0, end_ms - begin_ms) * _US}
    return {"ph": "X", "name": name, "pid": track[0], "tid": track[1], **times, "args": told}


def _ranks(rows: Mapping[str, Sequence[Span]], tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    for slot, spans in rows.items():
        for span in spans:
            yield _slice((_RANKS, tracks[slot]), span.doing.value, span.begin_ms, span.end_ms)


def _recoveries(found: Iterable[Recovery]) -> Iterator[dict[str, Any]]:
    """Each with its parts in it. One that began while the one before was not over begins behind that, since slices of a track may not cross."""
    track, free_ms = (_JOB, _RECOVERIES), 0
    for recovery in found:
        marks = [max(free_ms, mark) for mark in recovery.marks_ms]
        begin_ms = max(free_ms, marks[0] - recovery.unknown_ms)
        yield _slice(
            track,
            f"behind generation {recovery.generation}",
            begin_ms,
            marks[-1],
            cause=recovery.cause,
            because=recovery.because_text,
            lost_steps=recovery.lost_steps_text,
            stopped_on_purpose_ms=recovery.paused_ms,
        )
        names = ("unknown", *PARTS)
        for name, (part_ms, next_ms) in zip(names, itertools.pairwise((begin_ms, *marks)), strict=True):
            if next_ms > part_ms:
                yield _slice(track, name, part_ms, next_ms)
        free_ms = marks[-1]


def _of_scheduler(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for begin_ms, end_ms in timeline.outages:
        yield _slice((_JOB, _SCHEDULER), "away", begin_ms, end_ms)
    for at_ms, step in timeline.commits:
        counted = {"ph": "C", "name": "common checkpoint", "pid": _JOB, "ts": at_ms * _US}
        yield {**counted, "args": {"step": step}}


def _marks(
    timeline: Timeline, events: Iterable[StoredEvent], tracks: dict[str, int]
) -> Iterator[dict[str, Any]]:
    for stored in events:
        event = stored.event
        if event.run not in (None, timeline.run) or stored.wall_ms < timeline.begin_ms:
            continue
        group, track = _track_of(event, tracks)
        mark = {"ph": "i", "s": "t", "name": event.kind.value, "pid": group, "tid": track}
        told = {name: value for name in _TOLD if (value := getattr(event, name)) not in (None, "")}
        yield {**mark, "ts": stored.wall_ms * _US, "args": told}


def _track_of(event: EventRecord, tracks: dict[str, int]) -> tuple[int, int]:
    node = event.node_id or ""
    track = tracks.get(node, tracks.get(first_id(node), 0)) if node else 0
    return (_RANKS, track) if track else (_JOB, _SCHEDULER)
