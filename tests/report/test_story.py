"""A story is told exactly, and in time that grows with its length only."""

from __future__ import annotations

import time

from recovery.core.records import EventKind
from recovery.report.node_spans import Doing, Span, blended
from recovery.report.timeline import Story, tell
from recovery.report.timeline_page import page
from tests.report import long_story
from tests.report.long_story import as_stored


def spans(story: Story, node: str) -> list[tuple[Doing, int]]:
    """What a node did and how long, in milliseconds."""
    return [(span.doing, span.end_ms - span.begin_ms) for span in story.lanes[node]]


def test_each_part_of_a_recovery_is_told() -> None:
    story = tell(*as_stored(nodes=3, failures=2), run=1)

    assert [one.generation for one in story.recoveries] == [1, 2]
    for one in story.recoveries:
        assert one.parts == (
            long_story.NOTICE_MS,
            long_story.WINDOW_MS,
            long_story.START_MS,
            long_story.RENDEZVOUS_MS,
            long_story.LOAD_MS,
            long_story.FIRST_STEP_MS,
        )
        assert one.total_ms == sum(one.parts)
        assert one.lost_steps == long_story.LOST_STEPS
        assert one.because == "worker lost"
    assert len(story.plans) == 3
    assert len(story.commits) == 2


def test_useful_is_what_all_ranks_did_for_the_first_time() -> None:
    story = tell(*as_stored(nodes=3, failures=2), run=1)
    first = 10_000 + 1_000  # to the closed connection
    again = 1_000  # up to its common checkpoint it did steps again

    assert story.useful_ms == first + again


def test_steps_that_are_done_again_when_the_story_ends_are_not_useful_yet() -> None:
    events, generations = as_stored(nodes=2, failures=2)
    commits = [n for n, stored in enumerate(events) if stored.event.kind is EventKind.CHECKPOINT_COMMITTED]
    until_lost = [stored for n, stored in enumerate(events[: commits[1] + 2]) if n != commits[1]]

    story = tell(until_lost, generations[:2], run=1)

    assert story.useful_ms == 10_000 + 1_000, "that of the first generation"
    assert spans(story, "worker_0")[-1] == (Doing.REDOING, 11_000)


def test_each_lane_tells_what_its_node_did() -> None:
    story = tell(*as_stored(nodes=2, failures=1), run=1)
    start_ms = long_story.RENDEZVOUS_MS + long_story.LOAD_MS + long_story.FIRST_STEP_MS
    first = [
        (Doing.WAITING, long_story.START_MS),
        (Doing.STARTING, start_ms),
    ]

    assert spans(story, "worker_0") == [
        *first,
        (Doing.RUNNING, 11_000),
        (Doing.LOST, long_story.NOTICE_MS + long_story.WINDOW_MS // 2),
        (Doing.REFUSED, long_story.WINDOW_MS // 2),
        (Doing.WAITING, long_story.START_MS),
        (Doing.STARTING, start_ms),
    ]
    assert spans(story, "worker_1") == [
        *first,
        (Doing.RUNNING, 11_000 + long_story.NOTICE_MS),
        (Doing.WAITING, long_story.WINDOW_MS + long_story.START_MS),
        (Doing.STARTING, start_ms),
    ]


def test_a_loss_that_took_its_time_is_not_mistaken_for_another_nodes() -> None:
    events, generations = as_stored(nodes=3, failures=1)
    quiet = [stored for stored in events if stored.event.kind.value != "node_suspected"]

    [one] = tell(quiet, generations, run=1).recoveries

    assert one.notice_ms == 0
    assert one.window_ms == long_story.WINDOW_MS


def test_generations_without_a_story_are_told_as_nothing() -> None:
    _, generations = as_stored(nodes=2, failures=2)
    assert tell([], generations, run=1).useful_ms == 0


def test_another_runs_story_is_left_out() -> None:
    assert tell(*as_stored(nodes=2, failures=2), run=2).recoveries == ()


def test_a_story_of_thousands_of_failures_is_told_and_drawn_in_seconds() -> None:
    events, generations = as_stored(nodes=8, failures=2_500)
    assert len(events) > 80_000
    begun = time.monotonic()

    story = tell(events, generations, run=1)
    drawn = page(story, job="long", state="running")

    assert time.monotonic() - begun < 10, "it took 108 s while each failure searched the whole story"
    assert len(story.recoveries) == 2_500
    assert len(drawn) < 2_000_000
    assert drawn.count("<path") < 8 * len(Doing) + 1_200, "one mark for each pixel at most"


def test_what_is_too_short_to_be_seen_is_blended_into_what_it_mostly_is() -> None:
    def span(doing: Doing, begin_ms: int, end_ms: int) -> Span:
        return Span(doing=doing, begin_ms=begin_ms, end_ms=end_ms)

    lane = [
        span(Doing.RUNNING, 0, 100),
        span(Doing.LOST, 100, 101),
        span(Doing.WAITING, 101, 104),
        span(Doing.RUNNING, 104, 200),
        span(Doing.LOST, 200, 206),
        span(Doing.WAITING, 206, 211),
        span(Doing.STARTING, 211, 212),
    ]

    assert list(blended(lane, 10)) == [
        span(Doing.RUNNING, 0, 100),
        span(Doing.WAITING, 100, 104),
        span(Doing.RUNNING, 104, 200),
        span(Doing.LOST, 200, 206),
        span(Doing.WAITING, 206, 212),
    ]
    assert list(blended(lane, 1)) == lane
