"""A store that the first release wrote: whoever looks reads it and changes nothing, its owner brings it up to date."""

from __future__ import annotations

from pathlib import Path

import msgspec

from recovery.core.records import ActivityRecord, StepRecord
from recovery.store.migrations import REVISIONS
from recovery.store.reader import Written, check_worker, read_events, read_notes, read_scheduler, read_worker
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store.any_records import ONE_OF_EACH, WALL_MS, files, filled, sql

TO_THE_FIRST = (
    "DROP TABLE activity",
    "DROP TABLE seats",
    "DROP TABLE processes",
    "DROP TABLE copies",
    "DROP TABLE live_sources",
    "DROP TABLE training_ends",
    "ALTER TABLE job DROP COLUMN cause",
    "ALTER TABLE job DROP COLUMN about",
    "ALTER TABLE nodes DROP COLUMN cause",
    "ALTER TABLE generations DROP COLUMN cause",
    "ALTER TABLE checkpoints DROP COLUMN replica",
    "UPDATE alembic_version SET version_num = '0001'",
)


def test_a_reader_needs_no_owner_to_bring_the_file_up_to_date(tmp_path: Path) -> None:
    state = filled(tmp_path)
    sql(tmp_path / "scheduler.db", *TO_THE_FIRST)
    before = files(tmp_path)
    newer = ("slots", "processes", "copies", "live_sources", "training_ends")
    state = msgspec.structs.replace(state, **dict.fromkeys(newer, ()))

    assert read_scheduler(tmp_path) == state
    assert len(read_events(tmp_path)) == 1
    assert files(tmp_path) == before

    store = SchedulerStore.open(tmp_path)
    assert store.load() == state
    store.close()
    assert files(tmp_path) != before


def test_a_workers_notes_of_the_first_release_are_its_steps(tmp_path: Path) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    store.apply(ONE_OF_EACH, wall_ms=WALL_MS)
    store.close()
    sql(tmp_path / "workers" / "worker_3.db", *TO_THE_FIRST)

    noted = read_notes(tmp_path, "worker_3")
    assert noted.activity == ()
    assert noted.step is not None
    assert isinstance(noted.step.record, StepRecord)
    assert noted.step.wall_ms == WALL_MS
    assert read_worker(tmp_path, "worker_3").step == noted.step.record
    check_worker(tmp_path, "worker_3")


def test_a_workers_notes_come_with_their_times_and_of_one_generation_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    assert REVISIONS[0] == "0001"
    store = WorkerStore.open(tmp_path, "worker_3")
    [one] = [record for record in ONE_OF_EACH if isinstance(record, ActivityRecord)]
    store.apply(ONE_OF_EACH, wall_ms=WALL_MS)
    store.close()

    assert read_notes(tmp_path, "worker_3").activity == (Written(one, WALL_MS),)
    assert read_notes(tmp_path, "worker_3", generation=one.generation).activity == (Written(one, WALL_MS),)
    assert read_notes(tmp_path, "worker_3", generation=one.generation + 1).activity == ()
    assert [saved.wall_ms for saved in read_notes(tmp_path, "worker_3").checkpoints] == [WALL_MS]
