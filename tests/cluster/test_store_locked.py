"""A shell of SQLite that a person keeps open on the scheduler's store, in the middle of a transaction: all wait for it, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.store.paths import scheduler_path
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_launcher_failures import logged

pytestmark = pytest.mark.cluster

_SHELL = """
import sqlite3, sys
shell = sqlite3.connect(sys.argv[1], isolation_level=None)
shell.execute("PRAGMA busy_timeout = 60000")
shell.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
shell.execute("ROLLBACK")
"""


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process writes, and does not come to an end."""
    command = [sys.executable, "-c", _SHELL, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        try:
            assert shell.stdout.readline() == b"locked\n"
            yield
        finally:
            shell.stdin.close()
    assert shell.returncode == 0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LaunchedCluster]:
    """It trains, and does not end before the test says so."""
    with LaunchedCluster(tmp_path, environment={"JOB_HELD_STEP": "40"}) as cluster:
        cluster.start()
        cluster.wait_step(11)
        cluster.wait_commit(10)
        yield cluster


def busy(cluster: LaunchedCluster) -> int:
    """How often the scheduler has said that it waits for the lock."""
    return cluster.log_of("scheduler").count("STORE_BUSY: ")


def assert_ends_well(cluster: LaunchedCluster) -> None:
    cluster.go_on()
    assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
    cluster.check_result()


def test_training_goes_on_beside_a_lock_and_what_was_saved_is_noted_behind_it(job: LaunchedCluster) -> None:
    with locked(scheduler_path(job.directory / "recovery")):
        job.wait(lambda: busy(job), "word of the scheduler that it waits")
        job.wait_step(39)
        noted = [stored.event.step or 0 for stored in job.events(EventKind.CHECKPOINT_COMMITTED)]
        assert max(noted) < 35, "the lock keeps it from noting"
    job.wait_commit(35)
    assert_ends_well(job)
    assert job.generations() == {1}
    assert not logged(job, "scheduler start 1: "), "it has not ended"


def test_a_recovery_waits_for_the_lock(job: LaunchedCluster) -> None:
    with locked(scheduler_path(job.directory / "recovery")):
        job.kill_node("1")
        job.wait(lambda: busy(job), "word of the scheduler that it waits")
    job.wait_step(39, generation=2)
    assert_ends_well(job)
    assert len(job.events(EventKind.PLAN_MADE)) == 2


def test_a_scheduler_that_is_started_again_waits_for_the_lock(job: LaunchedCluster) -> None:
    """It ended with STORE_BUSY at each start; and who closes the file while no scheduler has it open folds its -wal, for which no later one starts."""
    with locked(scheduler_path(job.directory / "recovery")):
        job.kill_node("sched")
        job.wait(lambda: busy(job), "word of the scheduler that it waits")
        job.wait_step(39)
    job.wait_event(EventKind.SCHEDULER_RESTARTED)
    assert_ends_well(job)
    assert job.generations() == {1}
    assert logged(job, "start 2), log: "), "the scheduler was started again"
    assert not logged(job, "scheduler start 2: ")
