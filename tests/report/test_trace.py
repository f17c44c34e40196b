"""A trace has what the timeline has, in the form that its readers ask for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from recovery.core.ids import RunId
from recovery.report.node_spans import by_slot
from recovery.report.recoveries import PARTS
from recovery.report.timeline import Timeline, make_timeline
from recovery.report.trace import trace
from recovery.store.reader import StoredEvent
from tests.report import long_job
from tests.report.simulated_jobs import simulate


def written(timeline: Timeline, events: list[StoredEvent]) -> list[dict[str, Any]]:
    document = json.loads(trace(timeline, events, job="0123456789"))
    assert document["displayTimeUnit"] == "ms"
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def slices(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By the name of their track."""
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in found if one["name"] == "thread_name"}
    tracks: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for one in found:
        if one["ph"] == "X":
            tracks[names[one["pid"], one["tid"]]].append(one)
    return tracks


def assert_nested(track: list[dict[str, Any]]) -> None:
    """Slices of a track lie beside or in each other: a reader leaves out those that cross."""
    open_until: list[int] = []
    for one in sorted(track, key=lambda one: (one["ts"], -one["dur"])):
        while open_until and open_until[-1] <= one["ts"]:
            open_until.pop()
        assert not open_until or one["ts"] + one["dur"] <= open_until[-1], one
        open_until.append(one["ts"] + one["dur"])


def test_each_recovery_has_its_parts_in_it_and_each_rank_its_track() -> None:
    events, generations = long_job.as_stored(nodes=3, failures=2)
    timeline = make_timeline(events, generations, run=1)
    found = written(timeline, events)
    tracks = slices(found)

    assert [*tracks] == ["scheduler", "recoveries", *timeline.spans]
    assert [one["name"] for one in tracks["recoveries"]] == [
        "behind generation 1",
        *PARTS,
        "behind generation 2",
        *PARTS,
    ]
    first, *parts = tracks["recoveries"][: len(PARTS) + 1]
    assert [part["dur"] for part in parts] == [part * 1_000 for part in timeline.recoveries[0].parts]
    assert (first["dur"], first["args"]["lost_steps"]) == (sum(part["dur"] for part in parts), "3")
    assert (first["args"]["because"], first["args"]["cause"]) == ("worker lost", "node_lost")
    for node, spans in timeline.spans.items():
        assert [(one["name"], one["ts"], one["dur"]) for one in tracks[node]] == [
            (span.doing.value, span.begin_ms * 1_000, (span.end_ms - span.begin_ms) * 1_000) for span in spans
        ]
    marks = [one for one in found if one["ph"] == "i"]
    assert Counter(one["name"] for one in marks) == Counter(stored.event.kind.value for stored in events)
    assert {(one["pid"], one["tid"]) for one in marks} == {(1, 1), (2, 1), (2, 2), (2, 3)}
    assert [one["args"] for one in found if one["ph"] == "C"] == [
        {"step": step} for _, step in timeline.commits
    ]


def test_events_of_other_runs_are_left_out() -> None:
    events, generations = long_job.as_stored(nodes=2, failures=1)
    others = [replace(one, event=replace(one.event, run=RunId(2))) for one in events]
    found = written(make_timeline(events, generations, run=1), [*events, *others])

    assert sum(one["ph"] == "i" for one in found) == len(events)


@pytest.mark.parametrize("seed", range(12))
def test_slices_of_a_track_never_cross(seed: int) -> None:
    job = simulate(seed)
    timeline, events = job.timeline(), job.events()
    tracks = slices(written(timeline, events))

    assert tracks.keys() == {"scheduler", "recoveries", *by_slot(timeline.spans)}
    assert len(tracks["scheduler"]) == len(timeline.outages)
    for track in tracks.values():
        assert_nested(track)
    behind = [one for one in tracks["recoveries"] if one["name"].startswith("behind generation ")]
    assert len(behind) == len(timeline.recoveries)
