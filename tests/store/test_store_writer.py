"""The writer thread: group commit, tickets in order, a full disk waits, any other failure stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from recovery.core.records import Record
from recovery.errors import InvariantError, StoreError, StoreFullError
from recovery.store import writer as writer_module
from recovery.store.reader import read_events
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.store.any_records import WALL_MS, checkpoint, event

DEADLINE_S = 60.0


class Reports:
    """What a writer reported, and in which thread."""

    def __init__(self) -> None:
        self.tickets: list[object] = []
        self.failures: list[StoreError] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def durable(self, ticket: object) -> None:
        with self._changed:
            self.tickets.append(ticket)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()

    def failed(self, error: StoreError) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait(self, *, tickets: int = 0, failures: int = 0) -> None:
        with self._changed:
            reached = self._changed.wait_for(
                lambda: len(self.tickets) >= tickets and len(self.failures) >= failures, DEADLINE_S
            )
        assert reached, (self.tickets, self.failures)


class HeldStore:
    """A store whose writes wait for `go`, and count their transactions."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.transactions: list[int] = []

    def check(self) -> None:
        pass

    def apply(self, records: Sequence[Record], *, wall_ms: int) -> None:
        self.begun.set()
        assert self.go.wait(DEADLINE_S)
        assert wall_ms == WALL_MS
        self.transactions.append(len(records))


def a_writer(store: writer_module.Store, reports: Reports) -> Writer:
    return Writer(store, on_durable=reports.durable, on_failure=reports.failed, wall_ms=lambda: WALL_MS)


@pytest.fixture
def held() -> Iterator[HeldStore]:
    store = HeldStore()
    yield store
    store.go.set()


def test_what_queued_up_during_a_commit_goes_into_the_next_one(held: HeldStore) -> None:
    reports = Reports()
    writer = a_writer(held, reports)

    writer.submit([event(0)], 0)
    assert held.begun.wait(DEADLINE_S)
    for number in range(1, 100):
        writer.submit([event(number)], number)
    assert reports.tickets == [], "an answer left before its write"
    held.go.set()
    assert writer.close(DEADLINE_S)

    assert held.transactions == [1, 99]
    assert reports.tickets == list(range(100))
    assert reports.threads == {"store-writer"}


def test_an_empty_batch_is_released_in_its_turn_and_writes_nothing(held: HeldStore) -> None:
    reports = Reports()
    writer = a_writer(held, reports)

    writer.submit((), "alone")
    reports.wait(tickets=1)
    assert held.transactions == []
    writer.submit([event(1)], "first")
    assert held.begun.wait(DEADLINE_S)
    writer.submit((), "second")
    held.go.set()
    assert writer.close(DEADLINE_S)

    assert reports.tickets == ["alone", "first", "second"]


def test_tickets_of_many_threads_are_released_once_each_and_after_the_row_is_readable(tmp_path: Path) -> None:
    store, reports = SchedulerStore.open(tmp_path), Reports()
    writer = a_writer(store, reports)

    def submit(thread: int) -> None:
        for number in range(20):
            writer.submit([event(thread * 100 + number)], thread * 100 + number)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert writer.close(DEADLINE_S)

    assert [line.event.step for line in read_events(tmp_path)] == reports.tickets
    assert len(set(reports.tickets)) == 80
    store.close()


def test_a_full_disk_is_reported_once_per_spell_and_the_answer_waits(tmp_path: Path) -> None:
    store, reports = SchedulerStore.open(tmp_path), Reports()
    raw = store._database.connection.connection.dbapi_connection
    assert raw is not None
    writer = a_writer(store, reports)
    pages = raw.execute("PRAGMA page_count").fetchone()[0]
    many = [checkpoint(step) for step in range(1, 2_000)]

    for spell in (1, 2):
        raw.execute(f"PRAGMA max_page_count={pages}")
        writer.submit([*many, event(spell)], f"big {spell}")
        reports.wait(failures=spell)
        writer.submit([event(100 + spell)], f"small {spell}")
        assert f"big {spell}" not in reports.tickets
        raw.execute("PRAGMA max_page_count=1073741823")
        reports.wait(tickets=2 * spell)
        many = [checkpoint(step, spell) for step in range(1, 2_000)]
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
    assert writer.close(DEADLINE_S)

    assert [type(error) for error in reports.failures] == [StoreFullError, StoreFullError]
    assert reports.tickets == ["big 1", "small 1", "big 2", "small 2"]
    assert [line.event.step for line in read_events(tmp_path)] == [1, 101, 2, 102], (
        "a retried batch is there once"
    )
    store.close()


def test_a_writer_closed_on_a_full_disk_says_that_not_all_was_written(tmp_path: Path) -> None:
    store, reports = SchedulerStore.open(tmp_path), Reports()
    raw = store._database.connection.connection.dbapi_connection
    assert raw is not None
    raw.execute(f"PRAGMA max_page_count={raw.execute('PRAGMA page_count').fetchone()[0]}")
    writer = a_writer(store, reports)
    writer.submit([checkpoint(step) for step in range(1, 2_000)], "never")
    reports.wait(failures=1)

    assert not writer.close(0.01)

    assert reports.tickets == []
    assert not writer._thread.is_alive()
    store.close()


def test_any_other_failure_stops_for_good_and_releases_nothing_more(tmp_path: Path) -> None:
    store, reports = SchedulerStore.open(tmp_path), Reports()
    writer = a_writer(store, reports)
    writer.submit([event(1)], "before")
    reports.wait(tickets=1)
    (tmp_path / "scheduler.db.lock").rename(tmp_path / "gone")

    writer.submit([event(2)], "failing")
    reports.wait(failures=1)
    writer.submit([event(3)], "after")

    assert not writer.close(DEADLINE_S)
    assert [type(error) for error in reports.failures] == [StoreError]
    assert reports.tickets == ["before"]
    assert [line.event.step for line in read_events(tmp_path)] == [1]
    store.close()


def test_a_queue_says_when_it_is_full_and_takes_what_is_under_way(
    held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_MAX", 6)
    reports = Reports()
    writer = a_writer(held, reports)
    writer.submit([event(0)], 0)
    assert held.begun.wait(DEADLINE_S)

    crowded = []
    for number in (1, 2, 3):
        writer.submit([event(number)], number)
        crowded.append(writer.crowded)
    assert crowded == [False, False, True], "three batches of a row each wait"
    writer.submit([event(4)], 4)

    held.go.set()
    reports.wait(tickets=5)
    assert not writer.crowded
    assert writer.close(DEADLINE_S)
    assert reports.tickets == [0, 1, 2, 3, 4]


def test_a_stuck_disk_does_not_hold_the_close(held: HeldStore) -> None:
    writer = a_writer(held, Reports())
    writer.submit([event(0)], 0)
    assert held.begun.wait(DEADLINE_S)

    assert not writer.close(0.01)


def test_a_closed_writer_takes_nothing(held: HeldStore) -> None:
    writer = a_writer(held, Reports())
    assert writer.close(DEADLINE_S)

    with pytest.raises(InvariantError, match="closed writer"):
        writer.submit([], "late")
