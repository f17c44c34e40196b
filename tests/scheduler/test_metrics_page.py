"""A scheduler's metrics: its own state of now, beside what its files say of the past, which is read beside the loop and not each time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, RunId
from recovery.core.rules import Rules
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.views import figures_view
from recovery.report import job_metrics
from recovery.report.timeline import make_timeline
from recovery.scheduler.metrics_page import MetricsPage
from tests.core.desk import Desk, running_workers
from tests.report import long_job
from tests.report.test_metrics import samples

WAIT_S = 60.0
READ = job_metrics.LiveMetrics.read


def of_a_job(workers: int = 2) -> SchedulerState:
    """Whose ranks are at step 7."""
    desk = Desk(Rules(worker_count=workers))
    for worker in running_workers(desk):
        worker.send(m.Heartbeat(sequence=1, generation=Generation(1), step=7))
    return desk.machine.state


async def answer(page: MetricsPage, accept: str = "") -> dict[str, float]:
    body, _ = await page.answer(accept)
    return samples(body.decode())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each reading."""
    found: list[str] = []

    def read(self: job_metrics.LiveMetrics, path: Path, generations: object, run: int) -> None:
        found.append(threading.current_thread().name)
        READ(self, path, generations, run)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(job_metrics.LiveMetrics, "read", read)
    return found


def test_a_job_that_keeps_nothing_has_the_metrics_of_now() -> None:
    found = asyncio.run(answer(MetricsPage(of_a_job(), None)))

    assert found["recovery_step"] == 7
    assert found["recovery_nodes,state=live"] == 2
    assert found["recovery_last_step_age_seconds"] >= 0
    assert "recovery_goodput_ratio" not in found


def test_the_past_is_read_once_for_many_scrapes_and_beside_the_loop(tmp_path: Path, reads: list[str]) -> None:
    long_job.write(tmp_path / "recovery", nodes=2, failures=3)
    state = of_a_job()
    state.generations = long_job.as_stored(nodes=2, failures=3)[1]

    async def main() -> list[dict[str, float]]:
        page = MetricsPage(state, tmp_path / "recovery")
        at_once = await asyncio.gather(*(answer(page) for _ in range(5)))
        return [*at_once, *[await answer(page) for _ in range(5)]]

    found = asyncio.run(main())
    assert reads == ["metrics"]
    for one in found:
        assert one["recovery_restarts_total,cause=node_lost"] == 3
        assert 0 < one["recovery_goodput_ratio"] < 1
        assert one["recovery_step"] == 7


def test_files_that_cannot_be_read_leave_the_metrics_of_now(
    tmp_path: Path, reads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    state = of_a_job()

    async def main() -> dict[str, float]:
        page = MetricsPage(state, tmp_path / "none")
        await answer(page)
        return await answer(page)

    found = asyncio.run(main())
    assert found["recovery_step"] == 7
    assert "recovery_goodput_ratio" not in found
    assert reads == ["metrics"]
    assert "event=metrics_not_read RECOVERY_PATH" in caplog.text


def test_nobody_waits_for_a_past_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(job_metrics.LiveMetrics, "read", lambda *_: go_on.wait(WAIT_S))
    monkeypatch.setattr("recovery.scheduler.past_reader.WAIT_S", 0.1)

    async def main() -> tuple[dict[str, float], int]:
        page = MetricsPage(of_a_job(), tmp_path)
        # The import of what makes the figures may take longer than that.
        while not (found := await answer(page)):
            pass
        turned = 0
        for _ in range(3):
            await answer(page)
            turned += 1
        go_on.set()
        return found, turned

    found, turned = asyncio.run(main())
    assert (found["recovery_step"], turned) == (7, 3)


def test_of_a_new_run_nothing_of_the_earlier_one_is_told(tmp_path: Path) -> None:
    long_job.write(tmp_path / "recovery", nodes=2, failures=3)
    state = of_a_job()
    state.generations = long_job.as_stored(nodes=2, failures=3)[1]

    async def main() -> tuple[dict[str, float], dict[str, float]]:
        page = MetricsPage(state, tmp_path / "recovery")
        before = await answer(page)
        state.job = msgspec.structs.replace(state.job, run=RunId(2))
        return before, await answer(page)

    before, after = asyncio.run(main())
    assert "recovery_restarts_total,cause=node_lost" in before
    assert "recovery_restarts_total,cause=node_lost" not in after


def test_a_counter_never_goes_back_within_a_run() -> None:
    of_job = job_metrics.LiveMetrics()
    events, generations = long_job.as_stored(nodes=2, failures=3)
    figures = figures_view(of_a_job(), 0)
    told = []
    for seen in (events, events[: len(events) // 2]):
        of_job._timeline = make_timeline(seen, generations, run=1)
        told.append(samples(of_job.text(1, figures, "", 0)[0].decode()))
    first, second = told

    counters = [name for name in first if "_total" in name]
    assert second["recovery_goodput_ratio"] != first["recovery_goodput_ratio"], "another timeline"
    assert second["recovery_restarts_total,cause=node_lost"] == 3
    assert all(second[name] >= first[name] for name in counters)
