"""Views of a large job come in under a second: 1,000 nodes, 100,000 events."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recovery.store.reader import read_events
from tests.cluster.inspected import run
from tests.pace import within
from tests.report.long_job import write

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.cold_start(reason="a person waits for the imports of a view as well"),
]

NODES, EVENTS = 1_000, 100_000
LIMIT_S = 2.0
"""Goal: one second. Measured on two cores: 0.42 to 0.52 s, plan 0.6 s, timeline 1.1 s (it reads every event). Twice the goal for a machine that is busy."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 failures, after each of which 1,000 nodes say that they are ready, have loaded, and have done a step."""
    path = tmp_path_factory.mktemp("large") / "recovery"
    write(path, NODES, failures=32)
    assert len(read_events(path, after=EVENTS - 1)) >= 1
    return path


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "json"])
@pytest.mark.parametrize(
    "command", ["status", "nodes", "steps", "checkpoints", "generations", "events", "plan", "timeline"]
)
def test_a_view_of_a_large_job_takes_less_than_a_second(
    large: Path, command: str, form: tuple[str, ...]
) -> None:
    times = []
    for _ in range(3):
        begun = time.monotonic()
        done = run(command, str(large), *form)
        times.append(time.monotonic() - begun)
        assert done.returncode == 0, done.stderr
        if times[-1] < LIMIT_S:
            break
    assert within(min(times), LIMIT_S)


def test_the_first_page_of_followed_events_comes_at_once(large: Path) -> None:
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "recovery", "events", str(large), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
    ) as follow:
        assert follow.stdout is not None
        assert "first_step_done" in follow.stdout.readline()
        took_s = time.monotonic() - begun
        assert within(took_s, LIMIT_S)
        follow.kill()


def test_help_comes_in_a_fraction_of_a_second() -> None:
    times = []
    for _ in range(5):
        begun = time.monotonic()
        assert run("--help").returncode == 0
        times.append(time.monotonic() - begun)
    assert within(statistics.median(times), LIMIT_S / 2)
