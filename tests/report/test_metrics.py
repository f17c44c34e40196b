"""The metrics of a job are the figures of `recovery status` and `recovery timeline`, and what nobody knows is not among them."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as open_parser
from typer.testing import CliRunner

from recovery.cli.main import app
from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation
from recovery.core.records import JOB_STOPPED, NO_STEP, STARTS_AGAIN, EventKind, EventRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.views import STARTING_AGAIN, figures_view, job_view
from recovery.report.job_metrics import facts_of_path
from recovery.report.metrics import LOST_TIME, METRICS, PARTS, Facts, Kind, Now, numbers_of
from recovery.report.metrics_text import text_of
from recovery.report.recoveries import CAUSES
from recovery.report.status import status, status_of_view
from recovery.report.stored import read_stored
from recovery.report.timeline import Timeline, make_timeline, read_timeline
from recovery.store.reader import StoredEvent
from tests.core.desk import Desk, Worker, begin
from tests.golden.views import unpacked
from tests.house.files import ROOT
from tests.report.long_job import FIRST_STEP_MS, WINDOW_MS, as_stored, event
from tests.report.simulated_jobs import simulate

NOW = Now(
    state="running",
    step=7,
    committed_step=5,
    step_age_ms=None,
    generation=3,
    scheduler_incarnation=2,
    nodes={"live": 1, "lost": 1},
    standbys=0,
    notices=0,
)


def samples(text: str) -> dict[str, float]:
    """By name and labels, as a reader of the text has them."""
    return {
        ",".join([one.name, *(f"{key}={value}" for key, value in sorted(one.labels.items()))]): one.value
        for family in plain_parser.text_string_to_metric_families(text)
        for one in family.samples
    }


def shown(timeline: Timeline | None, *, now_ms: int = 0, step_age_ms: int | None = None) -> dict[str, float]:
    return samples(text_of(Facts(NOW._replace(step_age_ms=step_age_ms), timeline, now_ms))[0].decode())


def test_what_a_job_has_cost_is_told_by_its_parts() -> None:
    timeline = make_timeline(*as_stored(nodes=3, failures=2), run=1)
    found = shown(timeline)

    assert found["recovery_restarts_total,cause=node_lost"] == 2
    assert sum(found[f"recovery_restarts_total,cause={cause}"] for cause in CAUSES) == 2
    assert found["recovery_steps_lost_total"] == sum(one.lost_steps for one in timeline.recoveries) > 0
    assert found["recovery_goodput_ratio"] == pytest.approx(timeline.goodput)
    assert found["recovery_ettr_ratio"] == pytest.approx(timeline.goodput), (
        "it goes on, and was never stopped"
    )
    for part, each_ms in (("window", WINDOW_MS), ("first_step", FIRST_STEP_MS)):
        of_part = f"recovery_time_to_recover_seconds_%s,part={part}"
        assert (found[of_part % "count"], found[of_part % "sum"]) == (1, each_ms / 1000), (
            "the last has not trained"
        )
    assert found["recovery_time_to_recover_seconds_bucket,le=2.5,part=window"] == 0
    assert found["recovery_time_to_recover_seconds_bucket,le=5.0,part=window"] == 1


@pytest.mark.parametrize("seed", range(2))
def test_useful_and_lost_time_are_all_the_time_in_which_the_job_was_meant_to_run(seed: int) -> None:
    timeline = simulate(seed).timeline()
    found = shown(timeline)
    lost_s = sum(found[f"recovery_badput_seconds_total,kind={kind}"] for kind in LOST_TIME)
    meant_s = (timeline.trained_ms - timeline.begin_ms - timeline.paused_ms) / 1000

    # Where a survivor trained on for a moment behind another one's closed connection, that counts as both.
    assert lost_s + timeline.useful_ms / 1000 == pytest.approx(meant_s, abs=0.1)


def test_what_nobody_knows_is_left_out() -> None:
    timeline = make_timeline(*as_stored(nodes=2, failures=1), run=1)
    of_status = set(shown(None))
    assert "recovery_step" in of_status
    assert not any(
        one.startswith(("recovery_goodput", "recovery_restarts", "recovery_steps_lost")) for one in of_status
    )
    assert "recovery_last_step_age_seconds" not in of_status
    assert shown(None, step_age_ms=1_500)["recovery_last_step_age_seconds"] == 1.5

    of_no_steps = shown(msgspec.structs.replace(timeline, tells_steps=False))
    assert not {"recovery_goodput_ratio", "recovery_ettr_ratio"} & set(of_no_steps)
    thinned = shown(msgspec.structs.replace(timeline, begins_later=True))
    assert "recovery_ettr_ratio" not in thinned, "when it was started first is not in the log any more"
    [one] = timeline.recoveries
    unknown = msgspec.structs.replace(one, lost_steps=0, lost_steps_known=False)
    assert "recovery_steps_lost_total" not in shown(msgspec.structs.replace(timeline, recoveries=(unknown,)))
    at_least = msgspec.structs.replace(one, lost_steps=2, lost_steps_known=False)
    assert shown(msgspec.structs.replace(timeline, recoveries=(at_least,)))["recovery_steps_lost_total"] == 2


def test_time_in_which_nothing_lives_counts_for_ettr_alone() -> None:
    timeline = make_timeline(*as_stored(nodes=2, failures=1), run=1)
    now_ms = timeline.begin_ms + 2 * (timeline.end_ms - timeline.begin_ms)
    facts = Facts(NOW._replace(state="not running"), timeline, now_ms)
    found = samples(text_of(facts)[0].decode())

    assert found["recovery_goodput_ratio"] == pytest.approx(timeline.goodput)
    assert found["recovery_ettr_ratio"] == pytest.approx(timeline.goodput / 2)
    assert shown(timeline, now_ms=now_ms)["recovery_ettr_ratio"] == pytest.approx(timeline.goodput)


# --- what interrupted a generation -------------------------------------------------------------------------------------------


def raised(kind: EventKind, *, incarnation: int = 1, details: str = "") -> EventRecord:
    return msgspec.structs.replace(event(kind, 1, 0), incarnation=Incarnation(incarnation), details=details)


INTERRUPTIONS = {
    "node_lost": ((raised(EventKind.NODE_LOST),), (), {}),
    "of another process": (
        (raised(EventKind.NODE_FAILED, incarnation=2), raised(EventKind.NODE_LOST)),
        (),
        {},
    ),
    "script": ((raised(EventKind.NODE_FAILED), raised(EventKind.NODE_LOST)), (), {}),
    "node_left": ((raised(EventKind.NODE_LEFT),), (), {}),
    "checkpoint": ((raised(EventKind.CHECKPOINT_INVALID),), (), {}),
    "replicas": ((raised(EventKind.REPLICAS_DIFFER),), (), {}),
    "known later": ((), (raised(EventKind.NODE_LOST),), {}),
    "hang": ((), (raised(EventKind.NODE_LOST),), {"details": NO_STEP}),
    "stopped": ((), (), {"reason": f"{JOB_STOPPED}: SIGTERM"}),
    "other": ((), (raised(EventKind.NODE_LOST, details=STARTS_AGAIN),), {}),
}
CAUSE_OF = {"of another process": "node_lost", "known later": "node_lost"}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_what_interrupted_a_generation_is_told_in_a_word(name: str) -> None:
    before, after, fields = INTERRUPTIONS[name]
    interrupted = msgspec.structs.replace(event(EventKind.GENERATION_INTERRUPTED, 1, step=3), **fields)
    log = [
        event(EventKind.PLAN_MADE, 1, step=0),
        *before,
        interrupted,
        *after,
        event(EventKind.PLAN_MADE, 2, step=0),
    ]
    events = [StoredEvent(sequence=at, wall_ms=at * 1_000, event=one) for at, one in enumerate(log, 1)]
    timeline = make_timeline(events, as_stored(nodes=2, failures=1)[1], run=1)

    assert [one.cause for one in timeline.recoveries] == [CAUSE_OF.get(name, name)]
    assert timeline.hangs == (name == "hang")


def test_every_cause_is_met_above() -> None:
    assert {CAUSE_OF.get(name, name) for name in INTERRUPTIONS} == set(CAUSES)


# --- the text ----------------------------------------------------------------------------------------------------------------


def test_both_formats_say_the_same_and_every_metric_its_unit() -> None:
    timeline = make_timeline(*as_stored(nodes=2, failures=1), run=1)
    facts = Facts(NOW._replace(step_age_ms=100), timeline, 0)
    text, content_type = text_of(facts)
    opened, open_type = text_of(facts, "application/openmetrics-text; version=1.0.0")

    assert content_type.startswith("text/plain; version=0.0.4")
    assert open_type.startswith("application/openmetrics-text; version=1.0.0")
    families = list(open_parser.text_string_to_metric_families(opened.decode()))  # type: ignore[no-untyped-call]  # it ships none there
    assert {(one.name, one.labels.get("le"), one.value) for family in families for one in family.samples} == {
        (one.name, one.labels.get("le"), one.value)
        for family in plain_parser.text_string_to_metric_families(text.decode())
        for one in family.samples
    }
    assert {family.name: (family.type, family.unit) for family in families} == {
        row.name.removesuffix("_total"): (row.kind.value, row.unit) for row in METRICS
    }


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=new", "text/plain; version=1.x", "\udcff", ";;,=", "text/html"],
)
def test_who_asks_for_what_there_is_not_is_given_the_plain_format(accept: str) -> None:
    text, content_type = text_of(Facts(NOW, None, 0), accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert samples(text.decode())["recovery_step"] == 7


def test_labels_say_what_the_table_says_and_nothing_else() -> None:
    timeline = make_timeline(*as_stored(nodes=2, failures=1), run=1)
    for row in METRICS:
        if row.kind is not Kind.HISTOGRAM:
            found = set(numbers_of(row, Facts(NOW._replace(step_age_ms=100), timeline, 0)))
            assert found <= set(row.words or {"": ""}), row.name
    assert [set(row.words) for row in METRICS if row.kind is Kind.HISTOGRAM] == [set(PARTS)]


# --- a running scheduler -----------------------------------------------------------------------------------------------------


def test_a_running_scheduler_s_figures_are_those_of_its_status() -> None:
    desk = Desk(Rules(worker_count=3))
    workers = [Worker(desk, f"worker_{number}", starts_again=number == 2) for number in range(3)]
    seen: list[dict[str, int]] = []

    def compare() -> None:
        view = job_view(desk.machine.state, desk.now)
        figures = Now(**figures_view(desk.machine.state, desk.now))
        assert figures == Now.of_status(status_of_view(view, (), place=""), view["step_age_ms"])
        seen.append(dict(figures.nodes))

    begin(workers)
    compare()
    workers[0].send(m.Heartbeat(sequence=1, generation=Generation(1), step=9))
    desk.at(2_000)
    compare()
    workers[1].die()
    compare()
    desk.at(4_000)
    workers[2].die()
    compare()
    desk.at(8_000)
    compare()
    assert seen[0] == {"live": 3}
    assert {state for one in seen for state in one} == {"live", "suspect", "lost", STARTING_AGAIN}


# --- the command -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return unpacked(ROOT / "tests/golden/2026-11-26/killed.tar.xz", tmp_path)


def test_a_dead_job_has_the_metrics_of_its_status_and_timeline(path: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["metrics", str(path)])
    state = read_stored(path)
    timeline, _ = read_timeline(state)
    found, told = samples(done.stdout), status(state)

    assert done.exit_code == 0
    assert found["recovery_step"] == told["newest_step"] > 0
    assert found["recovery_committed_step"] == told["committed_step"] > 0
    assert found["recovery_goodput_ratio"] == pytest.approx(timeline.goodput)
    assert found["recovery_generation"] == 2
    assert found[f"recovery_job_state,state={told['state']}"] == 1

    file = tmp_path / "job.prom"
    file.write_text("of an earlier look")
    done = CliRunner().invoke(app, ["metrics", str(path), "--output", str(file)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert {**samples(file.read_text()), "recovery_ettr_ratio": 0} == {**found, "recovery_ettr_ratio": 0}
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, "the node exporter has a user of its own"
    assert not list(tmp_path.glob("*.part"))


def test_a_place_that_cannot_be_written_is_named(path: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["metrics", str(path), "--output", str(tmp_path / "none" / "job.prom")])
    assert isinstance(done.exception, FileNotFoundError)


def test_how_old_the_newest_step_is_is_known_of_files_where_nothing_runs(path: Path) -> None:
    facts, unreadable = facts_of_path(path, now_ms=0)
    assert unreadable == ()
    assert facts.now.step_age_ms is None, "its processes may run, on another host"
    facts, _ = facts_of_path(_ended(path), now_ms=4_000_000_000_000)
    assert facts.timeline is not None
    assert facts.now.step_age_ms == 4_000_000_000_000 - facts.timeline.trained_ms


def _ended(path: Path) -> Path:
    place = path.parent / "ended"
    place.mkdir()
    return unpacked(ROOT / "tests/golden/2026-11-26/ended.tar.xz", place)
