"""A timeline is exact, and is made in time that grows with the length of the event log only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from recovery.core.ids import RunId
from recovery.core.policy.history import History, thinned
from recovery.core.records import EventKind, EventRecord
from recovery.report.node_spans import NO_CHANGE, OF_ALL_NODES, OF_ONE_NODE, Doing, Span, by_slot, visible
from recovery.report.timeline import Timeline, make_timeline
from recovery.report.timeline_page import COLOURS, page
from recovery.store.reader import StoredEvent
from tests.report import long_job
from tests.report.long_job import as_stored

PAUSE_MS = 502_000


def spans(timeline: Timeline, node: str) -> list[tuple[Doing, int]]:
    """What a node did and how long, in milliseconds."""
    return [(span.doing, span.end_ms - span.begin_ms) for span in timeline.spans[node]]


def test_each_part_of_a_recovery_has_its_time() -> None:
    timeline = make_timeline(*as_stored(nodes=3, failures=2), run=1)

    assert [one.generation for one in timeline.recoveries] == [1, 2]
    for one in timeline.recoveries:
        assert one.parts == (
            long_job.NOTICE_MS,
            long_job.WINDOW_MS,
            long_job.START_MS,
            long_job.RENDEZVOUS_MS,
            long_job.LOAD_MS,
            long_job.FIRST_STEP_MS,
        )
        assert one.total_ms == sum(one.parts)
        assert one.lost_steps == long_job.LOST_STEPS
        assert one.because == "worker lost"
    assert len(timeline.plans) == 3
    assert len(timeline.commits) == 2


def test_what_a_restarted_scheduler_is_told_again_moves_no_end_of_a_recovery() -> None:
    events, generations = as_stored(nodes=3, failures=2)
    first_plan, second_plan = [n for n, one in enumerate(events) if one.event.kind is EventKind.PLAN_MADE][1:]
    of_first = events[first_plan:second_plan]
    told_again = [
        one for one in of_first if one.event.kind in (EventKind.RENDEZVOUS_OPENED, EventKind.STATE_LOADED)
    ]
    assert told_again
    later = [replace(one, wall_ms=of_first[-1].wall_ms) for one in told_again]

    expected = make_timeline(events, generations, run=1).recoveries
    found = make_timeline(
        [*events[:second_plan], *later, *events[second_plan:]], generations, run=1
    ).recoveries

    assert found == expected


def test_a_run_is_whole_although_the_beginning_of_an_earlier_one_is_gone() -> None:
    events, generations = as_stored(nodes=3, failures=2)
    last = events[-1]
    thinned_away = replace(last, event=thinned(History.FAILURES, 10), sequence=last.sequence + 1)
    next_run = [
        replace(
            one, event=replace(one.event, run=2), sequence=one.sequence + 1_000, wall_ms=one.wall_ms + 10**7
        )
        for one in events
    ]
    both = [*generations, *(replace(record, run=2) for record in generations)]
    of_second = make_timeline(next_run, both, run=2)

    def begins_later(*left: StoredEvent) -> bool:
        found = make_timeline([*left, thinned_away, *next_run], both, run=2)
        assert found.recoveries == of_second.recoveries
        return found.begins_later

    assert make_timeline([*events[5:], thinned_away, *next_run], both, run=1).begins_later
    assert not begins_later(*events[5:])
    assert begins_later(), "its own first events may have gone with the others"
    newest = {(one.event.kind, one.event.node_id): one for one in [*events, *next_run]}
    assert begins_later(*(one for one in events if newest[one.event.kind, one.event.node_id] is one))


def test_a_story_that_has_lost_its_beginning_is_told_from_its_first_whole_generation_on() -> None:
    """Else the nodes would have done nothing until then, and the job's time would count as wasted."""
    events, generations = as_stored(nodes=3, failures=6)
    plans = [position for position, one in enumerate(events) if one.event.kind is EventKind.PLAN_MADE]
    told = replace(events[-1], event=thinned(History.FAILURES, 10), sequence=events[-1].sequence + 1)
    of_saves = replace(told, event=thinned(History.SAVES, 10))

    whole = make_timeline(events, generations, run=1)
    cut = make_timeline([*events[:2], *events[plans[2] + 5 :], told], generations, run=1)
    without_saves = make_timeline([*events, of_saves], generations, run=1)

    assert (whole.begins_later, cut.begins_later, without_saves.begins_later) == (False, True, False)
    assert cut.plans == whole.plans[3:]
    assert cut.recoveries == whole.recoveries[3:]
    assert cut.begin_ms == events[plans[3]].wall_ms
    assert cut.by_generation == whole.by_generation[3:]
    assert cut.end_ms == whole.end_ms
    assert without_saves.goodput == whole.goodput


def test_useful_is_what_all_ranks_did_for_the_first_time() -> None:
    timeline = make_timeline(*as_stored(nodes=3, failures=2), run=1)
    until_the_connection_closed = 10_000 + 1_000
    after_what_was_done_again = 1_000

    assert timeline.useful_ms == until_the_connection_closed + after_what_was_done_again


def test_steps_that_are_done_again_when_the_event_log_ends_are_not_useful_yet() -> None:
    events, generations = as_stored(nodes=2, failures=2)
    commits = [n for n, stored in enumerate(events) if stored.event.kind is EventKind.CHECKPOINT_COMMITTED]
    until_lost = [stored for n, stored in enumerate(events[: commits[1] + 2]) if n != commits[1]]

    timeline = make_timeline(until_lost, generations[:2], run=1)

    assert timeline.useful_ms == 10_000 + 1_000, "that of the first generation"
    assert spans(timeline, "worker_0")[-1] == (Doing.REDOING, 11_000)


def test_each_nodes_spans_are_what_it_did() -> None:
    timeline = make_timeline(*as_stored(nodes=2, failures=1), run=1)
    start_ms = long_job.RENDEZVOUS_MS + long_job.LOAD_MS + long_job.FIRST_STEP_MS
    first = [
        (Doing.WAITING, long_job.START_MS),
        (Doing.STARTING, start_ms),
    ]

    assert spans(timeline, "worker_0") == [
        *first,
        (Doing.RUNNING, 11_000),
        (Doing.LOST, long_job.NOTICE_MS + long_job.WINDOW_MS // 2),
        (Doing.REFUSED, long_job.WINDOW_MS // 2),
        (Doing.WAITING, long_job.START_MS),
        (Doing.STARTING, start_ms),
    ]
    assert spans(timeline, "worker_1") == [
        *first,
        (Doing.RUNNING, 11_000 + long_job.NOTICE_MS),
        (Doing.WAITING, long_job.WINDOW_MS + long_job.START_MS),
        (Doing.STARTING, start_ms),
    ]


def test_a_loss_that_took_its_time_is_not_mistaken_for_another_nodes() -> None:
    events, generations = as_stored(nodes=3, failures=1)
    quiet = [stored for stored in events if stored.event.kind.value != "node_suspected"]

    [one] = make_timeline(quiet, generations, run=1).recoveries

    assert one.notice_ms == 0
    assert one.window_ms == long_job.WINDOW_MS


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_a_job_was_stopped_on_purpose_is_in_no_part_of_a_recovery_and_not_in_the_goodput(
    *, is_asked: bool
) -> None:
    events, generations = as_stored(nodes=2, failures=1)
    at = next(place for place, one in enumerate(events) if one.event.kind is EventKind.GENERATION_INTERRUPTED)
    stop = EventRecord(kind=EventKind.SCHEDULER_STOPPED, run=RunId(1), reason="SIGINT")
    start = EventRecord(kind=EventKind.SCHEDULER_RESTARTED, run=RunId(1))
    stopped = [replace(events[at], event=stop)] if is_asked else []
    again = replace(events[at], event=start, wall_ms=events[at].wall_ms + PAUSE_MS)
    later = [replace(one, wall_ms=one.wall_ms + PAUSE_MS) for one in events[at + 1 :]]
    undisturbed = make_timeline(events, generations, run=1)

    timeline = make_timeline([*events[: at + 1], *stopped, again, *later], generations, run=1)

    [expected], [one] = undisturbed.recoveries, timeline.recoveries
    if is_asked:
        assert (one.paused_ms, timeline.paused_ms) == (PAUSE_MS, PAUSE_MS)
        assert one.parts == expected.parts
        assert timeline.goodput == undisturbed.goodput
    else:
        assert (one.paused_ms, timeline.paused_ms) == (0, 0)
        assert one.window_ms == expected.window_ms + PAUSE_MS


def test_a_scheduler_that_is_stopped_while_the_ranks_train_on_is_no_pause() -> None:
    events, generations = as_stored(nodes=2, failures=1)
    at = next(place for place, one in enumerate(events) if one.event.kind is EventKind.CHECKPOINT_COMMITTED)
    stop = EventRecord(kind=EventKind.SCHEDULER_STOPPED, run=RunId(1), reason="SIGTERM")
    start = EventRecord(kind=EventKind.SCHEDULER_RESTARTED, run=RunId(1))
    stopped, again = replace(events[at], event=stop), replace(events[at + 1], event=start)

    timeline = make_timeline([*events[: at + 1], stopped, again, *events[at + 1 :]], generations, run=1)

    assert timeline.paused_ms == 0


def test_generations_without_events_have_no_useful_time() -> None:
    _, generations = as_stored(nodes=2, failures=2)
    assert make_timeline([], generations, run=1).useful_ms == 0


def test_another_runs_events_are_left_out() -> None:
    assert make_timeline(*as_stored(nodes=2, failures=2), run=2).recoveries == ()


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python run, each turn of a loop counted."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_the_work_for_a_timeline_grows_with_the_event_log_and_no_faster() -> None:
    """It took 108 s for 2,500 failures while each of them searched the whole event log."""

    def work(failures: int) -> int:
        stored = as_stored(nodes=8, failures=failures)
        return lines_run(lambda: page(make_timeline(*stored, run=1), job="long", state="running"))

    assert work(160) < 4.5 * work(40)


def test_a_timeline_of_thousands_of_failures_is_made_and_drawn() -> None:
    events, generations = as_stored(nodes=8, failures=2_500)
    assert len(events) > 80_000

    timeline = make_timeline(events, generations, run=1)
    drawn = page(timeline, job="long", state="running")

    assert len(timeline.recoveries) == 2_500
    assert len(drawn) < 2_000_000
    assert drawn.count("<path") < 8 * len(Doing) + 1_200, "one mark for each pixel at most"


def test_the_processes_of_one_place_are_one_row() -> None:
    def span(doing: Doing, begin_ms: int, end_ms: int) -> Span:
        return Span(doing=doing, begin_ms=begin_ms, end_ms=end_ms)

    drawn = by_slot(
        {
            "0": (span(Doing.RUNNING, 0, 100),),
            "1": (span(Doing.RUNNING, 0, 40), span(Doing.LOST, 40, 45), span(Doing.REFUSED, 45, 100)),
            "1.3": (span(Doing.RUNNING, 70, 100),),
            "1.2": (span(Doing.RUNNING, 50, 60), span(Doing.LOST, 60, 100)),
            "127.0.0.1": (),
        }
    )
    assert list(drawn) == ["0", "1", "127.0.0.1"]
    assert [(one.doing, one.begin_ms, one.end_ms) for one in drawn["1"]] == [
        (Doing.RUNNING, 0, 40),
        (Doing.LOST, 40, 45),
        (Doing.REFUSED, 45, 50),
        (Doing.RUNNING, 50, 60),
        (Doing.LOST, 60, 70),
        (Doing.RUNNING, 70, 100),
    ]


def test_workers_that_train_side_by_side_have_a_row_each_whatever_they_are_called() -> None:
    running = (Span(doing=Doing.RUNNING, begin_ms=0, end_ms=100),)
    for names in (["gpu", "gpu.2", "gpu.3"], ["gpu.1", "gpu.2", "gpu.3"]):
        assert list(by_slot(dict.fromkeys(names, running))) == names


def test_what_is_too_short_to_be_seen_is_merged_into_what_it_mostly_is() -> None:
    def span(doing: Doing, begin_ms: int, end_ms: int) -> Span:
        return Span(doing=doing, begin_ms=begin_ms, end_ms=end_ms)

    all_spans = [
        span(Doing.RUNNING, 0, 100),
        span(Doing.LOST, 100, 101),
        span(Doing.WAITING, 101, 104),
        span(Doing.RUNNING, 104, 200),
        span(Doing.LOST, 200, 206),
        span(Doing.WAITING, 206, 211),
        span(Doing.STARTING, 211, 212),
    ]

    assert list(visible(all_spans, 10)) == [
        span(Doing.RUNNING, 0, 100),
        span(Doing.WAITING, 100, 104),
        span(Doing.RUNNING, 104, 200),
        span(Doing.LOST, 200, 206),
        span(Doing.WAITING, 206, 212),
    ]
    assert list(visible(all_spans, 1)) == all_spans


def test_each_event_has_one_meaning_for_the_nodes_spans() -> None:
    meanings = [*OF_ONE_NODE, *OF_ALL_NODES, *NO_CHANGE]
    assert sorted(meanings) == sorted(EventKind)


def test_each_thing_that_a_node_does_has_a_colour() -> None:
    assert set(COLOURS) == set(Doing)
