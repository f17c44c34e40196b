"""The live page in a real browser beside a job: it goes on by itself over the death of a rank and of the scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster
from tests.page.chromium import browser
from tests.page.opened import opened

pytestmark = pytest.mark.cluster


def see_it_from_elsewhere(cluster: SmallCluster, path: Path) -> None:
    """The same from a host without its files, which has the job's token."""
    token = (path / "job_token").read_text().strip()
    words = f"--connect=127.0.0.1:{cluster.port}"
    with opened(words, environment={"MS_JOB_TOKEN": token}) as link, browser() as shown:
        shown.driver.get(link)
        rows = "return document.querySelectorAll('#rank-rows tr').length"
        shown.until(lambda: shown.ask(rows) == 2, "the ranks")
        recoveries = "return document.getElementById('recovery-rows').textContent"
        shown.until(lambda: "lost" in shown.ask(recoveries), "the recovery")
        assert shown.complaints() == []


def test_it_shows_what_happens_as_it_happens(tmp_path: Path) -> None:
    environment = {"JOB_STEP_MS": "60", "JOB_HELD_STEP": "40"}
    # A page on a busy machine reads every few seconds.
    with SmallCluster(tmp_path, window_s=20, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(13)
        with opened(tmp_path / "recovery") as link, browser() as shown:
            shown.driver.get(link)
            shown.until(lambda: shown.text("state") == "running", "a job that runs")
            shown.until(
                lambda: shown.ask("return document.querySelectorAll('#key li').length"), "the timeline"
            )
            assert "runs" in shown.text("figures")
            cluster.kill_and_relaunch("worker_1")
            missing = "return document.getElementById('missing').hidden ? '' : document.getElementById('missing-rows').textContent"
            shown.until(lambda: " s" in shown.ask(missing), "who is missing, and for how long it is refused")
            cluster.wait_step(25, generation=2)
            shown.until(
                lambda: "lost" in shown.ask("return document.getElementById('recovery-rows').textContent"),
                "the recovery",
            )
            shown.until(lambda: not shown.ask(missing), "that nobody is missing any more")
            see_it_from_elsewhere(cluster, tmp_path / "recovery")
            cluster.kill("sched")
            shown.until(lambda: "does not run" in shown.text("figures"), "that the scheduler is away")
            cluster.launch("sched")
            cluster.wait_event(EventKind.SCHEDULER_RESTARTED)
            shown.until(lambda: "incarnation 2" in shown.text("figures"), "that it is back")
            cluster.go_on()
            cluster.wait_end()
            cluster.check_result()
            shown.until(lambda: shown.text("state") == "finished", "the end")
            assert shown.text("trouble") == "" or shown.ask(
                "return document.getElementById('trouble').hidden"
            )
            assert shown.complaints() == []
