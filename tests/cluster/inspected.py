"""The `recovery` command as a person types it, and a recovery path that a real job with failures has left."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from recovery.core.records import EventKind
from tests.cluster.made_once import made_once
from tests.cluster.small_cluster import SmallCluster
from tests.warm import process


def run(
    *words: str, environment: Mapping[str, str] | None = None, under: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command, perhaps under another that goes on as it; what it said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
    command = [sys.executable, "-m", "recovery", *words]
    return process.run(command, under=under, env={**kept, **(environment or {})}, timeout=300)


def answer(*words: str, environment: Mapping[str, str] | None = None) -> Any:
    """What it said, as JSON, after a success."""
    done = run(*words, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def contents(place: Path) -> dict[str, str]:
    """Every file below a directory, by digest: did anybody write there?"""
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def job_with_failures(directory: Path) -> Path:
    """Train with two workers, one of which and the scheduler die on the way; gives the recovery path."""
    # The steps behind the checkpoint of step 10 take long enough to be seen when they are done again.
    environment = {"JOB_STEP_MS": "60", "JOB_HELD_STEP": "40"}
    with SmallCluster(directory, window_s=1.5, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(13)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_step(25, generation=2)
        cluster.kill("sched")
        cluster.launch("sched")
        cluster.wait_event(EventKind.SCHEDULER_RESTARTED)
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
    return directory / "recovery"


def finished_job(factory: pytest.TempPathFactory) -> Path:
    """The recovery path of such a job, for tests that only look at it."""
    return made_once(factory, "finished_job", job_with_failures) / "recovery"


def job_to_damage(factory: pytest.TempPathFactory) -> Path:
    """The same for tests that change its files and put them back: of this process alone."""
    own = os.environ.get("PYTEST_XDIST_WORKER", "one")
    return made_once(factory, f"job_to_damage_{own}", job_with_failures) / "recovery"
