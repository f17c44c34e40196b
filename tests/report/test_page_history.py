"""What the live page draws is what the timeline and the index of checkpoints say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recovery.core.records import EventKind, EventRecord
from recovery.report.job_metrics import facts_of_path
from recovery.report.metrics_text import text_of
from recovery.report.node_spans import by_slot
from recovery.report.page_history import history
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
from recovery.report.timeline_page import COLOURS
from recovery.store.repository import SchedulerStore
from tests.report import long_job
from tests.report.simulated_jobs import simulate


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("job")
    simulate(3).write(found)
    return found


def test_it_says_what_the_timeline_says(path: Path) -> None:
    stored = read_stored(path)
    timeline, _ = read_timeline(stored)
    found = history(stored, timeline.end_ms)
    assert found["goodput"] == timeline.known_goodput
    assert found["ettr"] is not None
    assert found["ettr"] <= timeline.goodput
    assert (found["failures"], found["lost_steps"]) == (timeline.failures, timeline.lost_steps_text)
    assert timeline.failures
    assert [row["parts_ms"][-1] for row in found["recoveries"]] == [
        one.total_ms for one in timeline.recoveries
    ]
    assert all(sum(row["parts_ms"][:-1]) == row["parts_ms"][-1] for row in found["recoveries"])
    assert [name for name, _ in found["rows"]] == list(by_slot(timeline.spans))
    assert len(found["key"]) == len(COLOURS)
    # A browser has all that it needs of it as JSON.
    assert msgspec.json.decode(msgspec.json.encode(found))["rows"]


def test_its_rows_are_in_order_and_within_the_run(path: Path) -> None:
    found = history(read_stored(path), 0)
    for _, spans in found["rows"]:
        assert spans
        times = [at for _, begin, end in spans for at in (begin, end)]
        assert times == sorted(times)
        assert found["begin_ms"] <= times[0]
        assert times[-1] <= found["end_ms"]
        assert all(0 <= code < len(found["key"]) for code, *_ in spans)


def test_checkpoints_are_steps_of_the_newest_run_with_the_ranks_that_hold_them(path: Path) -> None:
    stored = read_stored(path)
    rows = history(stored, 0)["checkpoints"]
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps), reverse=True)
    committed = [row for row in rows if row["state"] == "committed"]
    assert committed
    assert all(row["ranks"] == row["of"] == stored.job.worker_count for row in committed)
    assert all(set(row["tiers"]) <= {"disk", "memory"} for row in rows)


def test_what_has_no_room_on_a_screen_is_left_out(tmp_path: Path) -> None:
    long_job.write(tmp_path, nodes=2, failures=300)
    found = history(read_stored(tmp_path), 0)
    assert len(found["recoveries"]) == 200
    assert len(found["checkpoints"]) <= 12
    assert len(msgspec.json.encode(found)) < 1_000_000


def test_replicas_that_differed_are_counted_and_the_newest_is_said(tmp_path: Path) -> None:
    long_job.write(tmp_path, nodes=2, failures=1)
    before = read_stored(tmp_path)
    store = SchedulerStore.open(tmp_path)
    for step in (30, 40):
        reason = f"rank 1 differs from the other ranks in model[0].{step}"
        event = EventRecord(kind=EventKind.REPLICAS_DIFFER, run=before.job.run, step=step, reason=reason)
        store.apply((event,), wall_ms=10_000_000)
    store.close()
    found = history(read_stored(tmp_path), 0)
    assert found["mismatches"] == 2
    text, _ = text_of(facts_of_path(tmp_path, 0)[0])
    assert b"\nrecovery_mismatches_total 2.0\n" in text
    assert found["mismatch"] == "step 40: rank 1 differs from the other ranks in model[0].40"
