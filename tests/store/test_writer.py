"""The one writer thread, and what SIGKILL at a commit leaves."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from recovery.core.records import Record
from recovery.errors import InvariantError, StoreError, StoreFullError
from recovery.store import writer
from recovery.store.reader import read_events
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.store import samples

ROOT = Path(__file__).parents[2]


class Disk:
    """A store whose writes fail as a test wants."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.written: list[Record] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def check(self) -> None:
        pass

    def apply(self, records: Sequence[Record], *, wall_ms: int) -> None:
        self.entered.set()
        assert self.go_on.wait(60)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.written += records


class Heard:
    def __init__(self) -> None:
        self.durable: list[object] = []
        self.failures: list[StoreError] = []
        self.changed = threading.Condition()

    def on_durable(self, ticket: object) -> None:
        with self.changed:
            self.durable.append(ticket)
            self.changed.notify_all()

    def on_failure(self, error: StoreError) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def wait(self, *, durable: int = 0, failures: int = 0) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.durable) >= durable and len(self.failures) >= failures, 60
            )


def open_writer(store: Disk) -> tuple[Writer, Heard]:
    heard = Heard()
    return Writer(store, on_durable=heard.on_durable, on_failure=heard.on_failure, wall_ms=lambda: 1), heard


def test_tickets_are_released_in_order_also_those_without_records() -> None:
    disk = Disk()
    opened, heard = open_writer(disk)
    for number in range(20):
        opened.submit([samples.event()] if number % 2 else [], number)
    assert opened.close(60)
    assert heard.durable == list(range(20))
    assert len(disk.written) == 10
    with pytest.raises(InvariantError):
        opened.submit([], 21)


def test_an_answer_waits_for_its_write() -> None:
    disk = Disk()
    disk.go_on.clear()
    opened, heard = open_writer(disk)
    opened.submit([samples.event()], "a")
    assert disk.entered.wait(60)
    assert heard.durable == []
    disk.go_on.set()
    heard.wait(durable=1)
    assert opened.close(60)


def test_a_full_disk_is_reported_once_and_the_batch_waits_until_there_is_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    full = StoreFullError(path="p", reason="full")
    opened, heard = open_writer(Disk(full, full, full))
    opened.submit([samples.event()], "a")
    heard.wait(durable=1, failures=1)
    assert (heard.durable, len(heard.failures)) == (["a"], 1)
    assert opened.close(60)


def test_a_disk_that_stays_full_is_given_up_at_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.05)
    opened, heard = open_writer(Disk(*[StoreFullError(path="p", reason="full")] * 1_000))
    opened.submit([samples.event()], "a")
    heard.wait(failures=1)
    assert not opened.close(0.1)
    assert heard.durable == []


def test_any_other_failure_stops_the_writer_for_good() -> None:
    opened, heard = open_writer(Disk(StoreError("STORE_WRITE", path="p", reason="EIO")))
    opened.submit([samples.event()], "a")
    heard.wait(failures=1)
    opened.submit([samples.event()], "b")
    assert not opened.close(60)
    assert heard.durable == []


def test_a_failure_that_nobody_foresaw_is_reported_and_not_swallowed_with_the_thread() -> None:
    opened, heard = open_writer(Disk(ValueError("a bug")))
    opened.submit([samples.event()], "a")
    heard.wait(failures=1)
    assert heard.failures[0].code == "STORE_WRITE"
    assert "ValueError: a bug" in str(heard.failures[0])
    assert not opened.close(60)


def test_a_stuck_disk_does_not_hold_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.05)
    disk = Disk()
    disk.go_on.clear()
    opened, _ = open_writer(disk)
    opened.submit([samples.event()], "under way")
    assert disk.entered.wait(60)
    opened.submit([], "queued")
    assert not opened.close(0.05)
    disk.go_on.set()


CHILD = """
import sys, threading
from pathlib import Path
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.store import samples
store = SchedulerStore.open(Path(sys.argv[1]))
free = threading.Semaphore(50)
def durable(ticket):
    print(ticket, flush=True)
    free.release()
writer = Writer(store, on_durable=durable, on_failure=print, wall_ms=lambda: 1)
base = int(sys.argv[2])
for number in range(base, base + 100_000):
    free.acquire()
    writer.submit([samples.event(f"{number}a"), samples.event(f"{number}b")], number)
"""


def test_sigkill_at_a_commit_loses_nothing_acknowledged_and_leaves_nothing_half(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    draw = random.Random(1)
    for turn in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(turn * 1_000_000)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            for _ in range(draw.randint(1, 60)):
                acknowledged.add(int(child.stdout.readline()))
            child.send_signal(signal.SIGKILL)
            acknowledged |= {
                int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")
            }
        store = SchedulerStore.open(tmp_path)
        store.close()
    kept: list[str] = []
    while page := read_events(tmp_path, after=len(kept), limit=100_000):
        kept += [stored.event.reason for stored in page]
    whole = {int(text[:-1]) for text in kept if text.endswith("a")}
    assert whole == {int(text[:-1]) for text in kept if text.endswith("b")}, "a batch is half there"
    assert acknowledged <= whole, f"{len(acknowledged - whole)} acknowledged batches are lost"
