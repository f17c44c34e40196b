"""Views of a large job: 1,000 nodes, 100,000 events. How long they take is measured by benchmarks/looking.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery.store.reader import read_events
from tests.cluster.inspected import run
from tests.report.long_job import write

pytestmark = pytest.mark.cluster

NODES, EVENTS = 1_000, 100_000
HEAVY = ("sqlalchemy", "pydantic", "msgspec", "aiohttp", "asyncio", "torch")
"""What a command imports when it does its work, and not before."""


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
def test_a_large_job_has_every_view(large: Path, command: str, form: tuple[str, ...]) -> None:
    done = run(command, str(large), *form)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_page_of_followed_events_comes_while_they_are_followed(large: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "recovery", "events", str(large), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
    ) as follow:
        assert follow.stdout is not None
        assert "first_step_done" in follow.stdout.readline()
        follow.kill()


def test_help_imports_nothing_that_takes_long() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "recovery", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "recovery" in imported
    assert not imported & set(HEAVY)
