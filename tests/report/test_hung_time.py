"""The time in which a rank hangs is useful to nobody, and is part of what its recovery costs."""

from __future__ import annotations

import pytest

from recovery.core.records import NO_STEP, EventKind
from recovery.report.node_spans import Doing
from recovery.store.reader import StoredEvent
from tests.report.test_training_time import begun, event, last_spans, recorded, timeline_of

HUNG = recorded("a", 3, 10, steps=(1, 7)), recorded("a", 10, 70, steps=(7, 7), number=2)
OTHER = recorded("b", 3, 10, steps=(1, 8)), recorded("b", 10, 70, steps=(8, 8), number=2)
SUSPECTED = event(EventKind.HANG_SUSPECTED, 16, "a", step=7)


@pytest.mark.parametrize(
    "ended",
    [
        [event(EventKind.GENERATION_INTERRUPTED, 71, step=7, details=NO_STEP)],
        [SUSPECTED, event(EventKind.GENERATION_INTERRUPTED, 71, step=7, details=NO_STEP)],
        [
            SUSPECTED,
            event(EventKind.NODE_SUSPECTED, 70, "a"),
            event(EventKind.NODE_LOST, 71, "a"),
            event(EventKind.GENERATION_INTERRUPTED, 71),
        ],
    ],
    ids=["by a limit that was set", "told before", "ended by a person"],
)
def test_time_in_which_a_rank_hangs_is_not_useful(ended: list[StoredEvent]) -> None:
    timeline = timeline_of(
        [*begun("a", "b"), *ended, event(EventKind.PLAN_MADE, 72, generation=2)], *HUNG, *OTHER
    )

    assert timeline.useful_ms == 7_000
    assert timeline.unknown_ms == 0, "they were here"
    assert last_spans(timeline, "b")[:2] == [(Doing.STARTING, 2, 3), (Doing.RUNNING, 3, 10)]
    [recovery] = timeline.recoveries
    assert (recovery.notice_ms, recovery.unknown_ms) == (61_000, 0)


def test_rank_that_has_come_on_was_slow_and_its_time_is_useful() -> None:
    later = recorded("a", 70, 80, steps=(7, 20), number=3), recorded("b", 70, 80, steps=(8, 20), number=3)
    over = event(EventKind.GENERATION_INTERRUPTED, 80)
    came_on = [*begun("a", "b"), SUSPECTED, over]
    assert timeline_of(came_on, *HUNG, *OTHER, *later).useful_ms == 77_000, "a step shows it"

    cleared = event(EventKind.HANG_CLEARED, 75, "a", step=7)
    told = [*begun("a", "b"), SUSPECTED, cleared, over]
    assert timeline_of(told, *HUNG, *OTHER).useful_ms == 67_000, "it has said so"

    finished = [*begun("a", "b"), SUSPECTED, event(EventKind.JOB_FINISHED, 80)]
    assert timeline_of(finished, *HUNG, *OTHER).useful_ms == 67_000, "it was at its end"


def test_rank_that_has_recorded_nothing_hangs_since_it_was_told() -> None:
    ended = event(EventKind.GENERATION_INTERRUPTED, 71, step=7, details=NO_STEP)
    assert timeline_of([*begun("a", "b"), SUSPECTED, ended]).useful_ms == 13_000
    assert timeline_of([*begun("a", "b"), ended]).useful_ms == 68_000, "nobody knows since when"


def test_hang_begins_where_the_pace_of_before_says_and_not_at_the_end_of_its_record() -> None:
    """A record may be of a quarter of a minute, of which the last steps took a second."""
    pieces = (
        recorded("a", 3, 13, steps=(1, 101)),
        recorded("a", 13, 29, steps=(101, 131), number=2),
        recorded("a", 29, 71, steps=(131, 131), number=3),
    )
    ended = event(EventKind.GENERATION_INTERRUPTED, 71, step=131, details=NO_STEP)
    assert timeline_of([*begun("a"), ended], *pieces).useful_ms == 13_000
    # Where nothing came before, steps are taken to follow each other evenly.
    assert timeline_of([*begun("a"), ended], recorded("a", 3, 29, steps=(1, 131))).useful_ms == 26_000
