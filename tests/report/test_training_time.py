"""When a rank is known to have trained, case by case: by its own records, by the scheduler's events, and by neither."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.records import (
    JOB_STOPPED,
    STARTED_AGAIN,
    STARTS_AGAIN,
    ActivityRecord,
    EventKind,
    EventRecord,
    GenerationRecord,
)
from recovery.report.intervals import difference, intersection, union
from recovery.report.node_spans import Doing
from recovery.report.timeline import Timeline, make_timeline
from recovery.report.timeline_page import page
from recovery.store.reader import StoredEvent, Written

DUE_MS = 6_000
RUN = RunId(1)


def event(
    kind: EventKind,
    at_s: float,
    node: str | None = None,
    *,
    generation: int = 1,
    step: int = 0,
    reason: str = "",
    details: str = "",
) -> StoredEvent:
    record = EventRecord(
        kind=kind,
        run=RUN,
        node_id=None if node is None else NodeId(node),
        generation=Generation(generation),
        step=step,
        reason=reason,
        details=details,
    )
    return StoredEvent(sequence=1, wall_ms=int(at_s * 1000), event=record)


def begun(*nodes: str, first_steps: bool = True) -> list[StoredEvent]:
    """Let in at 1 s, planned at 2 s, first steps at 3 s."""
    found = [event(EventKind.NODE_ADMITTED, 1, node) for node in nodes]
    found.append(event(EventKind.PLAN_MADE, 2))
    if first_steps:
        found += [event(EventKind.FIRST_STEP_DONE, 3, node, step=1) for node in nodes]
    return found


def recorded(
    node: str,
    begin_s: float,
    end_s: float,
    *,
    steps: tuple[int, int] = (1, 10),
    number: int = 1,
    due_ms: int = DUE_MS,
) -> Written[ActivityRecord]:
    record = ActivityRecord(
        node_id=NodeId(node),
        run=RUN,
        generation=Generation(1),
        number=number,
        rank=Rank(0),
        incarnation=Incarnation(1),
        first_step=steps[0],
        step=steps[1],
        lasting_ms=int(1000 * (end_s - begin_s)),
        due_ms=due_ms,
    )
    return Written(record, int(1000 * end_s))


PLAN = GenerationRecord(run=RUN, generation=Generation(1), step=0, epoch=0, step_in_epoch=0, because="")


def timeline_of(events: list[StoredEvent], *activity: Written[ActivityRecord]) -> Timeline:
    return make_timeline(events, [PLAN], run=1, activity=activity)


def last_spans(timeline: Timeline, node: str) -> list[tuple[Doing, float, float]]:
    return [(span.doing, span.begin_ms / 1000, span.end_ms / 1000) for span in timeline.spans[node]][-3:]


def test_what_nobody_saw_while_the_scheduler_was_away_is_unknown() -> None:
    events = [*begun("a", "b"), event(EventKind.SCHEDULER_RESTARTED, 100)]
    lost = [event(EventKind.NODE_LOST, 110, "a"), event(EventKind.GENERATION_INTERRUPTED, 110)]

    timeline = timeline_of([*events, *lost], recorded("a", 3, 20), recorded("b", 3, 22))
    assert timeline.useful_ms == 17_000
    assert last_spans(timeline, "a")[1:] == [(Doing.RUNNING, 3, 20), (Doing.UNKNOWN, 20, 110)]
    assert last_spans(timeline, "b")[1:] == [(Doing.RUNNING, 3, 22), (Doing.UNKNOWN, 22, 110)]
    assert timeline.unknown_ms == 90_000

    unseen = timeline_of([*events, *lost])
    assert unseen.useful_ms == 0, (
        "nobody recorded anything: it is known until the scheduler's last event, which was their first step"
    )
    assert unseen.by_generation[0].unknown_ms == 107_000
    saved = event(EventKind.CHECKPOINT_COMMITTED, 50, step=10)
    assert timeline_of([*events[:-1], saved, events[-1], *lost]).useful_ms == 47_000, (
        "a common checkpoint proves it"
    )
    resumed = [event(EventKind.NODE_RESUMED, 101, node) for node in ("a", "b")]
    assert timeline_of([*events, *resumed, *lost]).useful_ms == 107_000, "they had trained on"


def test_the_next_record_may_not_have_been_due() -> None:
    ended = event(EventKind.GENERATION_INTERRUPTED, 25)
    assert timeline_of([*begun("a"), ended], recorded("a", 3, 20)).useful_ms == 22_000
    later = event(EventKind.GENERATION_INTERRUPTED, 26.5)
    assert timeline_of([*begun("a"), later], recorded("a", 3, 20)).useful_ms == 17_000
    stopped = timeline_of([*begun("a"), later], recorded("a", 3, 20, due_ms=0))
    assert stopped.useful_ms == 17_000
    assert stopped.unknown_ms == 0
    assert last_spans(stopped, "a")[-1] == (Doing.WAITING, 20, 26.5)


def test_a_pause_is_cut_out() -> None:
    finished = event(EventKind.JOB_FINISHED, 60)
    pieces = recorded("a", 3, 10), recorded("a", 10, 20, number=2), recorded("a", 50, 60, number=3)

    timeline = timeline_of([*begun("a"), finished], *pieces)
    assert timeline.useful_ms == 27_000
    assert last_spans(timeline, "a") == [
        (Doing.RUNNING, 3, 20),
        (Doing.UNKNOWN, 20, 50),
        (Doing.RUNNING, 50, 60),
    ]


def test_a_closed_connection_is_the_end_unless_the_node_comes_back() -> None:
    closed, ended = event(EventKind.NODE_SUSPECTED, 20, "a"), event(EventKind.GENERATION_INTERRUPTED, 22)
    assert timeline_of([*begun("a"), closed, ended]).useful_ms == 17_000
    back = event(EventKind.NODE_RESUMED, 20.3, "a")
    assert timeline_of([*begun("a"), closed, back, ended]).useful_ms == 19_000


def test_a_first_step_that_the_scheduler_missed_is_taken_from_the_record() -> None:
    ended = event(EventKind.GENERATION_INTERRUPTED, 25)
    timeline = timeline_of(
        [*begun("a", "b", first_steps=False), ended], recorded("a", 4, 24), recorded("b", 5, 24)
    )
    assert timeline.useful_ms == 20_000
    assert last_spans(timeline, "b")[1:] == [(Doing.STARTING, 2, 5), (Doing.RUNNING, 5, 25)]
    half = begun("a", "b")[:-1]
    assert timeline_of([*half, ended], recorded("a", 3, 24)).useful_ms == 22_000, (
        "of b nobody ever heard that it trains"
    )


def test_lost_steps_count_from_the_newest_that_anybody_recorded() -> None:
    events = [
        *begun("a"),
        event(EventKind.GENERATION_INTERRUPTED, 25),
        event(EventKind.PLAN_MADE, 30, generation=2, step=5),
        event(EventKind.FIRST_STEP_DONE, 31, "a", generation=2, step=6),
        event(EventKind.JOB_FINISHED, 90, generation=2),
    ]
    again = msgspec.structs.replace(PLAN, generation=Generation(2), step=5)
    first, one = recorded("a", 3, 24, steps=(1, 20)), recorded("a", 31, 90, steps=(6, 65)).record
    second = Written(msgspec.structs.replace(one, generation=Generation(2)), 90_000)

    timeline = make_timeline(events, [PLAN, again], run=1, activity=[first, second])
    assert timeline.recoveries[0].lost_steps == 15
    assert [(one.reached, one.redone_ms) for one in timeline.by_generation] == [(20, 0), (65, 14_000)]
    assert [span[0] for span in last_spans(timeline, "a")[-2:]] == [Doing.REDOING, Doing.RUNNING]


@pytest.mark.parametrize(
    ("outlived", "due_ms", "text"),
    [
        ([], DUE_MS, "at least 15"),
        ([event(EventKind.NODE_READY, 26, "a", step=0)], DUE_MS, "at least 15"),
        ([event(EventKind.NODE_READY, 26, "a", step=25)], DUE_MS, "20"),
        ([], 0, "15"),
    ],
    ids=["nobody", "a new process", "a survivor", "the notes of one that started its script again"],
)
def test_lost_steps_are_known_where_a_rank_outlived_the_generation(
    outlived: list[StoredEvent], due_ms: int, text: str
) -> None:
    events = [
        *begun("a"),
        event(EventKind.GENERATION_INTERRUPTED, 25),
        *outlived,
        event(EventKind.PLAN_MADE, 30, generation=2, step=5),
    ]
    again = msgspec.structs.replace(PLAN, generation=Generation(2), step=5)
    own = recorded("a", 3, 24, steps=(1, 20), due_ms=due_ms)

    timeline = make_timeline(events, [PLAN, again], run=1, activity=[own])

    assert timeline.recoveries[0].lost_steps_text == timeline.lost_steps_text == text


@pytest.mark.parametrize(
    ("step", "text"), [(19, "1 step done again"), (18, "2 steps done again"), (20, "0 steps done again")]
)
def test_one_step_is_said_as_one(step: int, text: str) -> None:
    events = [
        *begun("a"),
        event(EventKind.GENERATION_INTERRUPTED, 25),
        event(EventKind.PLAN_MADE, 30, generation=2, step=step),
    ]
    again = msgspec.structs.replace(PLAN, generation=Generation(2), step=step)

    timeline = make_timeline(
        events, [PLAN, again], run=1, activity=[recorded("a", 3, 24, steps=(1, 20), due_ms=0)]
    )

    assert f"{timeline.lost_steps_text} {timeline.done_again_text}" == text
    assert text in page(timeline, job="j", state="done").replace("</b>", " ")


@pytest.mark.parametrize(
    ("ended", "stopped", "is_resumption"),
    [
        (EventKind.NODE_LEFT, True, True),
        (EventKind.NODE_LOST, True, False),
        (EventKind.NODE_LEFT, False, False),
    ],
)
def test_a_stop_and_a_new_start_is_no_recovery(ended: EventKind, stopped: bool, is_resumption: bool) -> None:
    stops = [event(EventKind.SCHEDULER_STOPPED, 26), event(EventKind.SCHEDULER_RESTARTED, 28)]
    events = [
        *begun("a"),
        event(EventKind.CHECKPOINT_COMMITTED, 20, step=20),
        event(EventKind.DRAIN_ENDED, 21, step=20),
        event(ended, 25, "a"),
        event(EventKind.GENERATION_INTERRUPTED, 25),
        *(stops if stopped else []),
        event(EventKind.PLAN_MADE, 30, generation=2, step=20),
    ]
    again = msgspec.structs.replace(PLAN, generation=Generation(2), step=20)

    timeline = make_timeline(events, [PLAN, again], run=1)

    assert (timeline.resumptions, timeline.failures) == (int(is_resumption), int(not is_resumption))
    assert timeline.lost_steps_text == "0", "all had saved the step at which they stopped"


def test_a_job_that_was_stopped_has_not_failed_and_a_cause_that_was_found_later_is_shown() -> None:
    """Whose processes are killed behind the save are lost; the row of a generation is corrected, its event never is."""
    again = msgspec.structs.replace(PLAN, generation=Generation(2), step=20)
    causes = {}
    for reason in (f"{JOB_STOPPED} (the launcher at h: SIGINT)", "b: the data plane broke"):
        events = [
            *begun("a"),
            event(EventKind.NODE_LOST, 25, "a"),
            event(EventKind.GENERATION_INTERRUPTED, 25, reason=reason),
            event(EventKind.PLAN_MADE, 30, generation=2, step=20),
        ]
        found = "a lost: killed by SIGKILL" if "broke" in reason else reason
        timeline = make_timeline(events, [msgspec.structs.replace(PLAN, ended=found), again], run=1)
        causes[timeline.recoveries[0].because_text] = (timeline.resumptions, timeline.failures)

    assert causes == {
        "started again: the job was stopped (the launcher at h: SIGINT)": (1, 0),
        "a lost: killed by SIGKILL": (0, 1),
    }


@pytest.mark.parametrize("dies", [True, False])
def test_a_survivor_that_starts_its_program_again_is_not_drawn_as_lost(*, dies: bool) -> None:
    events = [
        *begun("a"),
        event(EventKind.GENERATION_INTERRUPTED, 10),
        event(EventKind.NODE_LOST, 11, "a", details=STARTS_AGAIN),
        event(EventKind.PROCESS_ENDED if dies else EventKind.NODE_RESUMED, 14, "a"),
        event(EventKind.PLAN_MADE, 16, generation=2),
    ]

    spans = make_timeline(events, [PLAN], run=1).spans["a"]

    assert [(span.doing, span.begin_ms // 1000) for span in spans][-2:] == [
        (Doing.STARTING_AGAIN, 11),
        (Doing.LOST if dies else Doing.WAITING, 14),
    ]


def test_the_start_of_a_survivor_that_starts_its_script_again_is_no_window() -> None:
    cut, again = event(EventKind.NODE_RESUMED, 27, "a"), event(EventKind.NODE_RESUMED, 29, "b")
    again = msgspec.structs.replace(again, event=msgspec.structs.replace(again.event, reason=STARTED_AGAIN))
    events = [
        *begun("a", "b"),
        event(EventKind.GENERATION_INTERRUPTED, 25),
        cut,
        again,
        event(EventKind.PLAN_MADE, 30, generation=2),
    ]
    plan = msgspec.structs.replace(PLAN, generation=Generation(2))
    [one] = make_timeline(events, [PLAN, plan], run=1).recoveries
    assert (one.window_ms, one.start_ms) == (2_000, 3_000)


def test_where_no_step_was_reported_nobody_knows_how_many_were_lost() -> None:
    events = [
        *begun("a", first_steps=False),
        event(EventKind.GENERATION_INTERRUPTED, 25),
        event(EventKind.PLAN_MADE, 30, generation=2, step=0),
    ]
    again = msgspec.structs.replace(PLAN, generation=Generation(2))
    assert make_timeline(events, [PLAN, again], run=1).lost_steps_text == "unknown"


def test_a_hosts_clock_that_is_wrong_is_set_right_by_the_first_step() -> None:
    ended = event(EventKind.GENERATION_INTERRUPTED, 25)
    assert timeline_of([*begun("a"), ended], recorded("a", 3_603, 3_620)).useful_ms == 22_000


def test_a_rank_whose_first_records_are_missing_began_with_its_first_step() -> None:
    """Its store was locked by the process before it."""
    ended = event(EventKind.GENERATION_INTERRUPTED, 25)
    assert timeline_of([*begun("a"), ended], recorded("a", 10, 24, number=3)).useful_ms == 22_000


def test_a_running_jobs_timeline_goes_to_the_newest_record() -> None:
    timeline = timeline_of(begun("a"), recorded("a", 3, 50))
    assert (timeline.end_ms, timeline.useful_ms) == (50_000, 47_000)


def test_who_waited_when_the_scheduler_died_and_did_not_come_back_is_unknown() -> None:
    waiting = [event(EventKind.NODE_ADMITTED, 1, "a"), event(EventKind.NODE_ADMITTED, 1, "b")]
    restarted = event(EventKind.SCHEDULER_RESTARTED, 30)
    back, lost = event(EventKind.NODE_RESUMED, 31, "a"), event(EventKind.NODE_LOST, 40, "b")
    timeline = timeline_of([*waiting, restarted, back, lost, event(EventKind.JOB_FAILED, 50)])
    assert last_spans(timeline, "a") == [(Doing.WAITING, 1, 50)]
    assert last_spans(timeline, "b") == [(Doing.UNKNOWN, 1, 40), (Doing.LOST, 40, 50)]
    assert timeline.unknown_ms == 39_000


def test_times_are_cut_and_joined() -> None:
    some, others = ((0, 10), (20, 30), (40, 50)), ((5, 25), (42, 43), (60, 70))
    assert intersection(some, others) == ((5, 10), (20, 25), (42, 43))
    assert difference(some, others) == ((0, 5), (25, 30), (40, 42), (43, 50))
    assert difference(some, ()) == some
    assert difference(some, some) == intersection(some, ()) == ()
    assert union([(5, 9), (0, 2), (2, 4), (6, 7)]) == ((0, 4), (5, 9))


@pytest.mark.parametrize("tells", [True, False])
def test_goodput_of_a_job_that_told_of_no_step_is_unknown_and_not_zero(*, tells: bool) -> None:
    events = [*begun("a", first_steps=tells), event(EventKind.JOB_FINISHED, 20)]
    timeline = make_timeline(events, [PLAN], run=1)
    assert timeline.for_json()["goodput"] == (pytest.approx(17 / 19) if tells else None)
    assert timeline.goodput_text == ("89.5%" if tells else "unknown (no rank has told of a step)")
    assert timeline.goodput_text in page(timeline, job="j", state="finished")


def test_the_time_between_a_finished_run_and_its_going_on_is_a_pause() -> None:
    events = [
        *begun("a"),
        event(EventKind.JOB_FINISHED, 20),
        event(EventKind.RUN_CONTINUED, 50),
        event(EventKind.SCHEDULER_RESTARTED, 50),
        event(EventKind.PLAN_MADE, 55, generation=2, step=20),
    ]

    timeline = make_timeline(events, [PLAN], run=1)

    assert (timeline.paused_ms, timeline.failures) == (30_000, 0)
