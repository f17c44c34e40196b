"""What is only history has a bound in each store: the oldest rows go, with an event, and what anybody could need stays."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from recovery.core.copy_records import CopyState
from recovery.core.failed_work import FROM_ANOTHER
from recovery.core.ids import Generation, Incarnation, NodeId, RunId
from recovery.core.policy import history
from recovery.core.policy.history import KEPT, History, piece, slack
from recovery.core.policy.rebuild import past_of
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    CheckpointState,
    EventKind,
    EventRecord,
    IncarnationRecord,
    NodeState,
    ProcessRecord,
    Record,
)
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX
from recovery.errors import StoreError
from recovery.store.paths import scheduler_path, worker_path
from recovery.store.reader import (
    check_scheduler,
    read_checkpoints,
    read_events,
    read_failed_work,
    read_notes,
    read_scheduler,
    read_worker,
)
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store.any_records import WALL_MS, checkpoint, copy, generation, job, node

FEW = 160
"""The bound of each kind in tests that write row by row: ten rows over it are deleted at once."""
SAVES = 525_600
"""Of a year, at a save a minute."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    for kind in History:
        monkeypatch.setitem(KEPT, kind, FEW)
    return FEW


def rows(path: Path, table: str, which: str = "1") -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {which}").fetchone()[0])


def write(store: SchedulerStore | WorkerStore, records: Iterable[Record]) -> None:
    for record in records:
        store.apply([record], wall_ms=WALL_MS)


def in_memory(step: int) -> CheckpointRecord:
    path = f"/dev/shm/{MEMORY_DIRECTORY_PREFIX}0/rank-0/train-1_{step}.ckpt"
    return msgspec.structs.replace(checkpoint(step), path=path)


def retired(step: int) -> CheckpointRecord:
    return msgspec.structs.replace(checkpoint(step), state=CheckpointState.RETIRED)


def told(path: Path, kind: History) -> list[EventRecord]:
    events = (stored.event for stored in read_events(path, limit=1_000_000))
    return [
        one for one in events if one.kind is EventKind.HISTORY_THINNED and one.details == kind.name.lower()
    ]


def test_a_workers_own_store_has_a_bound_and_its_newest_save_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, steps = WorkerStore.open(tmp_path, "worker_3"), 3 * KEPT[History.OWN_SAVES]
    store.apply([job(), node()], wall_ms=WALL_MS)
    with caplog.at_level(logging.INFO, "recovery.store"):
        for begin in range(1, steps + 1, 50):
            store.apply([checkpoint(step) for step in range(begin, begin + 50)], wall_ms=WALL_MS)
    kept = rows(worker_path(tmp_path, "worker_3"), "checkpoints")
    assert KEPT[History.OWN_SAVES] <= kept <= KEPT[History.OWN_SAVES] + slack(History.OWN_SAVES)
    assert store.load().checkpoints == (checkpoint(steps),)
    assert read_notes(tmp_path, "worker_3").checkpoints[-1].record == checkpoint(steps)
    assert "event=history_thinned" in caplog.text
    assert rows(worker_path(tmp_path, "worker_3"), "events") == 0, "in the log only"
    store.close()


def test_the_newest_save_on_a_disk_stays_however_many_followed_in_memory(tmp_path: Path, few: int) -> None:
    """Without it a scheduler whose store is lost would take the worker for one that never saved, and begin at step 0."""
    store = WorkerStore.open(tmp_path, "worker_3")
    store.apply([job(), node()], wall_ms=WALL_MS)
    write(store, [checkpoint(1), checkpoint(2), *map(in_memory, range(3, 10 * few))])
    store.close()

    assert rows(worker_path(tmp_path, "worker_3"), "checkpoints") <= few + slack(History.OWN_SAVES) + 1
    state = read_worker(tmp_path, "worker_3")
    assert state.checkpoints == (checkpoint(2),)
    assert past_of(job(), node(), (), state.checkpoints).saved_step == 2


def test_a_worker_that_saves_in_memory_only_has_the_same_bound(tmp_path: Path, few: int) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    write(store, map(in_memory, range(1, 3 * few)))
    assert rows(worker_path(tmp_path, "worker_3"), "checkpoints") < few + slack(History.OWN_SAVES)
    assert store.load().checkpoints == ()
    store.close()


def test_the_newest_save_is_of_the_run_of_the_newest_plan(tmp_path: Path) -> None:
    """The store has served another job before, whose runs went further."""
    store = WorkerStore.open(tmp_path, "worker_3")
    store.apply([msgspec.structs.replace(checkpoint(900), run=RunId(3)), checkpoint(7)], wall_ms=WALL_MS)
    assert [one.step for one in store.load().checkpoints] == [900]
    store.apply([job()], wall_ms=WALL_MS)
    assert [one.step for one in store.load().checkpoints] == [7]
    store.close()


def test_a_workers_notes_of_its_plans_have_a_bound(tmp_path: Path, few: int) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    write(store, map(generation, range(1, 3 * few)))
    kept = [one.generation for one in store.load().generations]
    assert few <= len(kept) < few + slack(History.OWN_PLANS)
    assert kept[-1] == 3 * few - 1
    store.close()


def test_a_workers_times_of_training_have_a_bound(tmp_path: Path, few: int) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    one = ActivityRecord(
        node_id=NodeId("worker_3"),
        run=RunId(1),
        generation=Generation(1),
        number=1,
        rank=node().rank or checkpoint(1).rank,
        incarnation=Incarnation(1),
        first_step=0,
        step=1,
        lasting_ms=1,
        due_ms=1,
    )
    write(
        store, (msgspec.structs.replace(one, generation=Generation(number)) for number in range(1, 3 * few))
    )
    store.close()
    kept = read_notes(tmp_path, "worker_3").activity
    assert few <= len(kept) < few + slack(History.ACTIVITY)
    assert kept[-1].record.generation == 3 * few - 1


def test_retired_checkpoints_and_copies_that_are_gone_have_a_bound_and_the_others_stay(
    tmp_path: Path, few: int
) -> None:
    store = SchedulerStore.open(tmp_path)
    write(store, [job(), checkpoint(1), copy(1)])
    write(store, (retired(step) for step in range(2, 3 * few)))
    write(store, (copy(step, CopyState.GONE) for step in range(2, 3 * few)))
    state = store.load()
    store.close()
    assert state.checkpoints == (checkpoint(1),)
    assert [one.step for one in state.copies] == [1]
    kept = [one.step for one in read_checkpoints(tmp_path)]
    assert few + 1 <= len(kept) <= few + slack(History.RETIRED)
    assert kept[-1] == 3 * few - 1, "the newest"
    assert few + 1 <= rows(scheduler_path(tmp_path), "copies") <= few + slack(History.COPIES)
    assert told(tmp_path, History.RETIRED)
    assert told(tmp_path, History.COPIES)
    check_scheduler(tmp_path)


def test_events_of_saves_do_not_drive_out_those_of_failures(tmp_path: Path, few: int) -> None:
    store = SchedulerStore.open(tmp_path)
    lost = EventRecord(kind=EventKind.GENERATION_INTERRUPTED, run=RunId(1), reason="worker_1 lost")
    committed = EventRecord(kind=EventKind.CHECKPOINT_COMMITTED, run=RunId(1))
    write(store, [job(), lost])
    write(store, (msgspec.structs.replace(committed, step=step) for step in range(1, 4 * few)))
    store.close()

    found = [stored.event for stored in read_events(tmp_path)]
    assert lost in found
    of_saves = [one.step for one in found if one.kind is EventKind.CHECKPOINT_COMMITTED]
    assert of_saves[-1] == 4 * few - 1
    assert few <= len(of_saves) < few + slack(History.SAVES)


def test_of_events_of_failures_the_newest_of_each_kind_stay_for_who_is_here(tmp_path: Path, few: int) -> None:
    """Whether the scheduler was started with live rollback, or a standby is ready, was perhaps written a year ago."""
    store = SchedulerStore.open(tmp_path)
    started = EventRecord(kind=EventKind.SCHEDULER_STARTED, details="live")
    here, gone = NodeId("worker_3"), NodeId("worker_4")
    ready = EventRecord(kind=EventKind.NODE_READY, node_id=here)
    write(store, [job(), node(here), node(gone, state=NodeState.LOST), started, ready])
    write(store, [msgspec.structs.replace(ready, node_id=gone)])
    write(
        store,
        (EventRecord(kind=EventKind.PLAN_MADE, generation=Generation(one)) for one in range(1, 3 * few)),
    )
    store.close()

    found = [stored.event for stored in read_events(tmp_path, limit=1_000)]
    assert found[:2] == [started, ready]
    assert [one for one in found if one.node_id == gone] == []
    assert few <= len(found) <= few + slack(History.FAILURES) + 2
    assert all(history.begins_later(one) for one in told(tmp_path, History.FAILURES))


def test_what_failed_beside_training_is_counted_also_where_their_events_are_deleted(
    tmp_path: Path, few: int
) -> None:
    store = SchedulerStore.open(tmp_path)
    failed = EventRecord(kind=EventKind.CHECKPOINT_NOT_SAVED, run=RunId(1))
    copy_failed = msgspec.structs.replace(failed, kind=EventKind.COPY_FAILED)
    came = msgspec.structs.replace(copy_failed, details=f"rank 1{FROM_ANOTHER}")
    write(store, [job(), *(one for _ in range(4 * few) for one in (failed, copy_failed, came))])
    write(store, [msgspec.structs.replace(failed, run=RunId(2))])
    store.close()
    assert rows(scheduler_path(tmp_path), "events") < 4 * few
    found = read_failed_work(tmp_path, RunId(1))
    assert (found.not_saved, found.not_copied, found.not_uploaded) == (4 * few, 4 * few, 0)
    assert read_failed_work(tmp_path, RunId(2)).not_saved == 1
    with closing(sqlite3.connect(scheduler_path(tmp_path))) as connection, connection:
        connection.execute("UPDATE meta SET value = 'many' WHERE name = 'not_saved_thinned:1'")
    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*how many saves, copies and uploads have failed"):
        read_failed_work(tmp_path, RunId(1))


def test_earlier_processes_have_a_bound_and_those_of_who_is_known_stay(tmp_path: Path, few: int) -> None:
    store = SchedulerStore.open(tmp_path)
    process = ProcessRecord(
        node_id=node().node_id, incarnation=Incarnation(1), boot_id="b", pid_namespace=1, start_ticks=1
    )
    was = IncarnationRecord(
        node_id=node().node_id, incarnation=Incarnation(1), rank=None, host="h", pid=1, run=RunId(1)
    )
    write(store, [job(), node(), process, was])
    for number in range(2, 3 * few):
        other = {"node_id": NodeId(f"worker_3.{number}")}
        store.apply(
            [msgspec.structs.replace(process, **other), msgspec.structs.replace(was, **other)],
            wall_ms=WALL_MS,
        )
    state = store.load()
    store.close()
    assert process in state.processes
    assert len(state.processes) <= few + slack(History.PROCESSES) + 1
    assert rows(scheduler_path(tmp_path), "incarnations", "node_id = 'worker_3'") == 1
    assert rows(scheduler_path(tmp_path), "incarnations") <= few + slack(History.INCARNATIONS) + 1


def test_processes_that_end_early_delete_as_one_that_runs_on(tmp_path: Path, few: int) -> None:
    """The count of what was written goes on in the next process."""
    for begin in range(0, 3 * few, 5):
        store = SchedulerStore.open(tmp_path)
        store.apply([retired(step) for step in range(begin + 1, begin + 6)], wall_ms=WALL_MS)
        store.close()
    assert rows(scheduler_path(tmp_path), "checkpoints") <= few + slack(History.RETIRED)


def _a_year_of_an_older_release(path: Path, state: CheckpointState) -> None:
    """Rows as they are where nothing was deleted yet. Their digests are wrong: who reads one of them says so."""
    saved = f"1, i, 0, i / 60 + 1, 1, i, '/data/train-1_' || i || '.ckpt', '{'a' * 64}', 4096, '{state.value}', '', ''"
    told = "i, 'checkpoint_committed', NULL, NULL, NULL, 1, i / 60 + 1, i, '', '', ''"
    count = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SAVES})"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"INSERT INTO checkpoints {count} SELECT {saved}, 1, '{'b' * 32}' FROM n")
        connection.execute(f"INSERT INTO events {count} SELECT {told}, 1, '{'b' * 32}' FROM n")


def _writes(kind: History) -> int:
    """In which a year's rows go, a piece with each, once a look is due."""
    return (SAVES - KEPT[kind]) // piece(kind) + 2


@pytest.mark.slow
def test_a_year_of_saves_in_a_workers_store_is_not_read_and_goes(tmp_path: Path) -> None:
    store, file = WorkerStore.open(tmp_path, "worker_3"), worker_path(tmp_path, "worker_3")
    _a_year_of_an_older_release(file, CheckpointState.PUBLISHED)
    store.apply([job(), node(), checkpoint(SAVES)], wall_ms=WALL_MS)
    store.close()

    assert read_worker(tmp_path, "worker_3").checkpoints == (checkpoint(SAVES),)
    store = WorkerStore.open(tmp_path, "worker_3")
    write(
        store,
        (
            checkpoint(SAVES + more)
            for more in range(1, slack(History.OWN_SAVES) + _writes(History.OWN_SAVES))
        ),
    )
    store.close()
    assert rows(file, "checkpoints") <= KEPT[History.OWN_SAVES] + slack(History.OWN_SAVES)


@pytest.mark.slow
def test_a_year_of_saves_in_the_schedulers_store_is_not_read_and_goes(tmp_path: Path) -> None:
    store, file = SchedulerStore.open(tmp_path), scheduler_path(tmp_path)
    _a_year_of_an_older_release(file, CheckpointState.RETIRED)
    store.apply([job(), checkpoint(SAVES + 1)], wall_ms=WALL_MS)
    store.close()

    assert read_scheduler(tmp_path).checkpoints == (checkpoint(SAVES + 1),)
    store = SchedulerStore.open(tmp_path)
    of_save = EventRecord(kind=EventKind.CHECKPOINT_COMMITTED, run=RunId(1))
    store.apply(
        [record for _ in range(slack(History.SAVES)) for record in (of_save, retired(1))], wall_ms=WALL_MS
    )
    write(store, (retired(2) for _ in range(_writes(History.SAVES) + _writes(History.RETIRED))))
    assert store.load().checkpoints == (checkpoint(SAVES + 1),)
    store.close()
    assert rows(file, "events", "kind = 'checkpoint_committed'") <= KEPT[History.SAVES] + slack(History.SAVES)
    assert rows(file, "checkpoints") <= KEPT[History.RETIRED] + slack(History.RETIRED)
    assert read_events(tmp_path, newest=True, limit=1)[0].sequence > SAVES, "numbers are never given again"
