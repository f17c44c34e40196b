"""The example's own scripts, as a person uses them: start the job, kill two of its processes, start again whatever is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.reader import read_events
from tests.cluster.startup import small_job_environment
from tests.pace import wait_for

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "disaster_recover"


class Example:
    """The job of run.sh in a directory; what it started dies with the test."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = small_job_environment()
        self.started: set[int] = set()

    def script(self, name: str, *arguments: str) -> str:
        """Run one of the scripts; what it said."""
        done = subprocess.run(
            ["bash", str(EXAMPLE / name), *arguments],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        self.started |= {int(path.read_text()) for path in self.place.glob("device/*.pid")}
        return done.stdout

    def kill(self, name: str) -> None:
        """SIGKILL by the pid that the script noted."""
        os.kill(int((self.place / "device" / f"{name}.pid").read_text()), signal.SIGKILL)

    def count(self, kind: EventKind) -> int:
        """Events of a kind so far."""
        try:
            return sum(one.event.kind is kind for one in read_events(self.place / "recovery"))
        except RecoveryError:
            return 0

    def wait(self, until: Callable[[], object], what: str) -> None:
        """At most a minute and a half."""
        logs = self.place / "device"
        wait_for(until, what, 90, lambda: "\n".join(path.read_text()[-2_000:] for path in logs.glob("*.log")))


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Example]:
    made = Example(tmp_path)
    try:
        yield made
    finally:
        for pid in made.started:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if any("train.py" in word for word in process.cmdline()):
                    process.kill()


def test_recover_without_a_name_starts_exactly_what_is_lost_and_training_ends_alike(example: Example) -> None:
    example.script("run.sh")
    example.wait(lambda: example.count(EventKind.CHECKPOINT_COMMITTED) >= 2, "second common checkpoint")
    assert example.script("recover.sh") == "nothing is lost\n"

    example.kill("worker_1")
    example.kill("sched")
    said = example.script("recover.sh")
    assert [line.split()[1] for line in said.splitlines()] == ["sched", "worker_1"]

    weights = [example.place / "device" / f"weights_{rank}.sha256" for rank in range(2)]
    example.wait(lambda: all(path.exists() for path in weights), "final weights")
    example.wait(lambda: example.count(EventKind.JOB_FINISHED), "end of the job")
    assert weights[0].read_text() == weights[1].read_text()
    assert example.count(EventKind.PLAN_MADE) == 2
    assert example.count(EventKind.SCHEDULER_RESTARTED) == 1
