"""Rows whose cause was a sentence: an owner that opens the file reads it once, and every digest still holds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from recovery.core.causes import Cause
from recovery.core.records import GenerationRecord, JobRecord, NodeRecord, Record
from recovery.errors import StoreError
from recovery.store.reader import read_scheduler
from recovery.store.repository import SchedulerStore
from tests.store.any_records import WALL_MS, job, node, sql
from tests.store.test_older_schema import TO_THE_FIRST

REBUILDING = "the scheduler's store was lost and is rebuilt from what the workers tell"
BEFORE = [line for line in TO_THE_FIRST if line.startswith("ALTER")]
GENERATION = GenerationRecord(run=1, generation=1, step=0, epoch=0, step_in_epoch=0, because="")  # type: ignore[arg-type]


def written_before(path: Path, *records: Record) -> None:
    """The store as the release before this one left it."""
    store = SchedulerStore.open(path)
    store.apply(records, wall_ms=WALL_MS)
    store.close()
    sql(path / "scheduler.db", *BEFORE, "UPDATE alembic_version SET version_num = '0006'")


def opened(path: Path) -> None:
    SchedulerStore.open(path).close()


@pytest.mark.parametrize(
    ("reason", "cause", "about"),
    [
        ("worker_3 lost: killed", Cause.NODE_LOST, "worker_3"),
        (REBUILDING, Cause.STORE_REBUILT, ""),
        (f"2 of 4 workers are here; first failure: {REBUILDING}", Cause.STORE_REBUILT, ""),
        ("worker_3 left: SIGTERM", Cause.OTHER, ""),
        ("", Cause.OTHER, ""),
    ],
)
def test_of_a_job(tmp_path: Path, reason: str, cause: Cause, about: str) -> None:
    written_before(tmp_path, msgspec.structs.replace(job(), reason=reason))
    opened(tmp_path)
    found = read_scheduler(tmp_path).job
    assert isinstance(found, JobRecord)
    assert (found.reason, found.cause, found.about) == (reason, cause, about)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("its run finished", Cause.RUN_FINISHED),
        ("its rank is handed over at step 20 (SIGTERM)", Cause.RANK_HANDED_OVER),
        ("its process (pid 17) has ended", Cause.PROCESS_ENDED),
        ("killed by signal 9", Cause.OTHER),
    ],
)
def test_of_a_node(tmp_path: Path, reason: str, cause: Cause) -> None:
    written_before(tmp_path, job(), node(reason=reason))
    opened(tmp_path)
    [found] = read_scheduler(tmp_path).nodes
    assert isinstance(found, NodeRecord)
    assert (found.reason, found.cause) == (reason, cause)


@pytest.mark.parametrize(
    ("because", "cause"), [("reported by the workers", Cause.STORE_REBUILT), ("killed", Cause.OTHER)]
)
def test_of_a_generation(tmp_path: Path, because: str, cause: Cause) -> None:
    written_before(tmp_path, job(), msgspec.structs.replace(GENERATION, because=because))
    opened(tmp_path)
    [found] = read_scheduler(tmp_path).generations
    assert found.cause is cause


def test_a_row_that_was_damaged_before_is_damaged_afterwards(tmp_path: Path) -> None:
    written_before(tmp_path, job(), node(reason="its run failed"))
    with closing(sqlite3.connect(tmp_path / "scheduler.db")) as connection:
        connection.execute("UPDATE nodes SET reason = 'its run finished'")
        connection.commit()
    with pytest.raises(StoreError, match="does not match its digest"):
        opened(tmp_path)
