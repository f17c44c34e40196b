"""A job in figures for a monitoring system: what `recovery status` and `recovery timeline` say of it, one row for each metric.

The names are an interface. A figure that is not known is left out: a zero would say that it is known to be one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, cast

from recovery.core.records import JobState, NodeState
from recovery.core.scheduler.job_states import ENDED
from recovery.core.scheduler.views import STARTING_AGAIN
from recovery.report.rank_progress import NOT_RUNNING, STOPPED, UNHEARD
from recovery.report.recoveries import CAUSES, Recovery
from recovery.report.timeline import Timeline

PARTS = ("unknown", "notice", "window", "start", "rendezvous", "load", "first_step")
"""Of a recovery, as `recovery timeline` names them."""
LOST_TIME = {
    "start": "until all ranks had done their first step",
    "recovery": "from the notice of a failure, or a stop, to the first step of all ranks behind it",
    "redone": "steps done again that a rollback had taken back",
    "unknown": "nobody recorded whether all ranks trained before a failure was noticed",
    "other": "the rest: a rank trained, but not all of them",
}
"""Kinds of time in which the job did not come further. Time in which it was stopped on purpose is none of them."""
_STATES = (*(state.value for state in JobState), STOPPED, NOT_RUNNING, UNHEARD)
_NODE_STATES = tuple(state.value for state in NodeState)
_GOES_ON = (JobState.RUNNING.value, *(state.value for state in ENDED))
_IS_OVER = (*(state.value for state in ENDED), STOPPED, NOT_RUNNING)

Values = Mapping[str, float]
"""By the value of the label; without a label one, under the empty text. None at all: nobody knows."""
Durations = Mapping[str, list[float]]
"""The same for a histogram: seconds."""


class Now(NamedTuple):
    """Where a job stands. The fields are the keys of `recovery.core.scheduler.views.figures_view`."""

    state: str
    """As `recovery status` says it."""
    step: int
    committed_step: int
    step_age_ms: int | None
    """How long ago the newest step was made; None: nobody knows."""
    generation: int
    scheduler_incarnation: int
    nodes: Mapping[str, int]
    """Those of the world, by state."""
    standbys: int
    """Those that are live."""
    notices: int
    """How often the run was asked to let ranks go, or to end."""

    @classmethod
    def of_status(cls, status: Mapping[str, Any], step_age_ms: int | None) -> Now:
        """The same as `recovery.report.status` gives it."""
        return cls(
            state=status["state"],
            step=status["newest_step"],
            committed_step=status["committed_step"],
            step_age_ms=step_age_ms,
            generation=status["generation"],
            scheduler_incarnation=status["scheduler"]["incarnation"],
            nodes=status["workers_by_state"],
            standbys=sum(row["state"] == NodeState.LIVE.value for row in status["standbys"]),
            notices=status["notices"],
        )


class Facts(NamedTuple):
    """What is known of a job."""

    now: Now
    timeline: Timeline | None
    """Of the newest run; None: nothing of it is kept, or it is not read yet."""
    now_ms: int
    """By the wall clock."""


class Kind(str, Enum):
    """As Prometheus calls it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One row."""

    name: str
    """As it is asked for. Never renamed."""
    kind: Kind
    meaning: str
    values: Callable[[Facts], Values | Durations]
    label: str = ""
    """Its name; empty: the metric has none."""
    words: Mapping[str, str] = {}
    """What the label may say, with its meaning, where that is not said elsewhere."""

    @property
    def unit(self) -> str:
        """By the end of its name; empty: a number."""
        end = self.name.removesuffix("_total").rpartition("_")[2]
        return end if end in ("seconds", "ratio") else ""


def _of_now(figure: Callable[[Now], float]) -> Callable[[Facts], Values]:
    """What is always known."""
    return lambda facts: _one(figure(facts.now))


def _of_timeline(figure: Callable[[Timeline], float | None]) -> Callable[[Facts], Values]:
    """A figure of the timeline, where there is one."""
    return lambda facts: _one(None if facts.timeline is None else figure(facts.timeline))


def _one(value: float | None) -> Values:
    return {} if value is None else {"": value}


def _job_states(facts: Facts) -> Values:
    return {state: float(state == facts.now.state) for state in _STATES}


def _nodes(facts: Facts) -> Values:
    return {**dict.fromkeys(_NODE_STATES, 0), **facts.now.nodes}


def _step_age(facts: Facts) -> Values:
    return _one(None if facts.now.step_age_ms is None else facts.now.step_age_ms / 1000)


def _ettr(facts: Facts) -> Values:
    timeline = facts.timeline
    return _one(None if timeline is None else ettr(timeline, facts.now.state, facts.now_ms))


def ettr(timeline: Timeline, state: str, now_ms: int) -> float | None:
    """Useful time by all time since the run's first start, 0 to 1; None: nobody knows.

    Args:
        timeline: of the run.
        state: of the job. Where it does not go on, the time since then counts too, up to now.
        now_ms: by the wall clock.
    """
    # What was before the oldest event that is kept, nobody knows.
    if not timeline.tells_steps or timeline.begins_later:
        return None
    end_ms = timeline.end_ms if state in _GOES_ON else max(timeline.end_ms, now_ms)
    return timeline.useful_ms / max(1, end_ms - timeline.begin_ms)


def _step_seconds(timeline: Timeline) -> float | None:
    """Of the newest generation in which steps were made together."""
    began = {generation: step for _, generation, step in timeline.plans}
    for one in reversed(timeline.by_generation):
        steps = one.reached - began.get(one.generation, one.reached)
        if steps > 0 and (trained_ms := one.useful_ms + one.redone_ms):
            return trained_ms / steps / 1000
    return None


def _lost_steps(timeline: Timeline) -> float | None:
    return (
        None if timeline.lost_steps_text == "unknown" else sum(one.lost_steps for one in timeline.recoveries)
    )


def _recovered(timeline: Timeline) -> Iterator[Recovery]:
    """The recoveries behind which all ranks have trained again."""
    newest = max(
        (one.generation for one in timeline.by_generation if one.useful_ms + one.redone_ms), default=0
    )
    return (one for one in timeline.recoveries if one.generation < newest)


def _lost_time(facts: Facts) -> Values:
    """Up to when all ranks trained last: what the time since then was shows itself when they train again."""
    timeline = facts.timeline
    if timeline is None or not timeline.trained_ms:
        return {}
    recovered = list(_recovered(timeline))
    found_ms = {
        "start": timeline.began_ms - timeline.begin_ms,
        "recovery": sum(sum(one.parts) for one in recovered),
        "redone": sum(one.redone_ms for one in timeline.by_generation),
        "unknown": sum(one.unknown_ms for one in recovered),
    }
    passed_ms = timeline.trained_ms - timeline.begin_ms - timeline.paused_ms - timeline.useful_ms
    found_ms["other"] = max(0, passed_ms - sum(found_ms.values()))
    return {kind: found_ms[kind] / 1000 for kind in LOST_TIME}


def _restarts(facts: Facts) -> Values:
    if facts.timeline is None:
        return {}
    counted = Counter(one.cause for one in facts.timeline.recoveries)
    return {cause: counted[cause] for cause in CAUSES}


def _parts(facts: Facts) -> Durations:
    """Of failures: who starts a job again that was stopped takes as long as he likes."""
    if facts.timeline is None:
        return {}
    found = [one for one in _recovered(facts.timeline) if not one.is_resumption]
    return {part: [getattr(one, f"{part}_ms") / 1000 for one in found] for part in PARTS}


METRICS = (
    Metric(
        "recovery_job_state",
        Kind.GAUGE,
        "1 at the state of the job, 0 at all others",
        _job_states,
        "state",
        {
            JobState.FORMING.value: "the world is not complete yet",
            JobState.RUNNING.value: "all ranks have a plan: they load, or train",
            JobState.INTERRUPTED.value: "a generation has ended, and the next one waits for all ranks",
            JobState.FINISHED.value: "all ranks are done",
            JobState.FAILED.value: "it has ended without success",
            STOPPED: "somebody has ended it in order, and no process of it runs",
            NOT_RUNNING: "it is not over, and no process of it runs on this host",
            UNHEARD: "workers run, and no scheduler does",
        },
    ),
    Metric(
        "recovery_step",
        Kind.GAUGE,
        "newest step that a rank is known to have made",
        _of_now(lambda now: now.step),
    ),
    Metric(
        "recovery_committed_step",
        Kind.GAUGE,
        "newest step that every rank has saved; 0: none",
        _of_now(lambda now: now.committed_step),
    ),
    Metric(
        "recovery_last_step_age_seconds",
        Kind.GAUGE,
        "since the newest step was made, as exact as heartbeats are. Of files only while nothing runs: they do not say when a step was made",
        _step_age,
    ),
    Metric(
        "recovery_step_seconds",
        Kind.GAUGE,
        "how long a step takes, on average over the newest generation",
        _of_timeline(_step_seconds),
    ),
    Metric(
        "recovery_nodes",
        Kind.GAUGE,
        "workers that hold a rank or a place for one, by state",
        _nodes,
        "state",
        {
            NodeState.LIVE.value: "connected",
            NodeState.SUSPECT.value: "its connection closed, and it may come back",
            NodeState.LOST.value: "gone; its rank is to be taken by another process",
            NodeState.LEFT.value: "it ended on purpose",
            STARTING_AGAIN: "it starts its program again",
            UNHEARD: "no scheduler runs to hear it",
            NOT_RUNNING: "no scheduler runs, and its process has ended",
        },
    ),
    Metric(
        "recovery_standbys",
        Kind.GAUGE,
        "live processes that wait for a rank to take over",
        _of_now(lambda now: now.standbys),
    ),
    Metric(
        "recovery_generation", Kind.GAUGE, "number of the generation", _of_now(lambda now: now.generation)
    ),
    Metric(
        "recovery_scheduler_incarnation",
        Kind.GAUGE,
        "which process of the scheduler it is, from 1 on",
        _of_now(lambda now: now.scheduler_incarnation),
    ),
    Metric(
        "recovery_goodput_ratio",
        Kind.GAUGE,
        "useful time by all time in which the job was meant to run",
        _of_timeline(lambda timeline: timeline.known_goodput),
    ),
    Metric(
        "recovery_ettr_ratio",
        Kind.GAUGE,
        "useful time by all time since the run's first start, with every second in which nothing ran",
        _ettr,
    ),
    Metric(
        "recovery_badput_seconds_total",
        Kind.COUNTER,
        "time in which the job did not come further, up to when all ranks trained last",
        _lost_time,
        "kind",
        LOST_TIME,
    ),
    Metric(
        "recovery_restarts_total",
        Kind.COUNTER,
        "generations that began again behind an interruption, by what interrupted them",
        _restarts,
        "cause",
        CAUSES,
    ),
    Metric(
        "recovery_time_to_recover_seconds",
        Kind.HISTOGRAM,
        "how long each part of a recovery from a failure took; all parts together are the recovery",
        _parts,
        "part",
        {
            "unknown": "from the last that all ranks were heard to the notice",
            "notice": "from the closed connection, or the last step of a rank that hung, to the loss",
            "window": "until the last missing node was let in",
            "start": "until the plan",
            "rendezvous": "until rank 0 listened",
            "load": "until the last rank had formed the world and loaded",
            "first_step": "until the last rank's first step",
        },
    ),
    Metric(
        "recovery_steps_lost_total",
        Kind.COUNTER,
        "steps done again; at least so many, where all ranks had died and nobody could say how far they were",
        _of_timeline(_lost_steps),
    ),
    Metric(
        "recovery_notices_total",
        Kind.COUNTER,
        "times that ranks, or the whole job, were asked to leave: a host was to be taken away, a signal or `recovery drain` asked for it",
        _of_now(lambda now: now.notices),
    ),
    Metric(
        "recovery_hangs_total",
        Kind.COUNTER,
        "times that a rank was connected and made no step for MS_STEP_TIMEOUT",
        _of_timeline(lambda timeline: timeline.hangs),
    ),
    Metric(
        "recovery_mismatches_total",
        Kind.COUNTER,
        "times that ranks which must hold the same did not: their save was not committed (MS_COMPARE_REPLICAS)",
        _of_timeline(lambda timeline: timeline.mismatches),
    ),
    Metric(
        "recovery_stragglers_total",
        Kind.COUNTER,
        "times that a rank was slower than the others by its own work (MS_STRAGGLER_PERCENT)",
        _of_timeline(lambda timeline: timeline.stragglers),
    ),
)


def seconds_of(metric: Metric, facts: Facts) -> Durations:
    """The values of a histogram."""
    assert metric.kind is Kind.HISTOGRAM, "others have numbers"
    return cast("Durations", metric.values(facts))


def numbers_of(metric: Metric, facts: Facts) -> Values:
    """The values of any other metric."""
    assert metric.kind is not Kind.HISTOGRAM, "it has durations"
    return cast("Values", metric.values(facts))


def is_over(state: str) -> bool:
    """Does no process of the job run, as far as this host can tell?"""
    return state in _IS_OVER
