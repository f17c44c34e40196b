"""The -wal stays small however its rows come: one by one, as a registration leaves them, or thousands in one commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import Record
from recovery.store.paths import companion, scheduler_path
from recovery.store.repository import FOLD_PAGES, SchedulerStore
from tests.store import samples

PAGE_BYTES = 4_096
WAL_BYTES_MAX = 2 * FOLD_PAGES * PAGE_BYTES
COMMITS = 400


def one_row(number: int) -> list[Record]:
    return [samples.event(f"{number}")]


def a_registration(number: int) -> list[Record]:
    return [samples.node(f"worker_{number}"), samples.event(f"{number}")]


def a_crowd(number: int) -> list[Record]:
    return [samples.event(f"{number} {row}") for row in range(40)]


@pytest.mark.parametrize("batch", [one_row, a_registration, a_crowd])
def test_the_wal_is_folded_before_it_has_grown_to_twice_its_bound(tmp_path: Path, batch: object) -> None:
    assert callable(batch)
    store, largest = SchedulerStore.open(tmp_path), 0
    wal = companion(scheduler_path(tmp_path), "-wal")
    for number in range(COMMITS):
        store.apply(batch(number), wall_ms=number)
        largest = max(largest, wal.stat().st_size)
    store.close()

    print(f"{COMMITS} commits: {largest / 2**20:.1f} MiB at most")
    assert FOLD_PAGES * PAGE_BYTES / 4 < largest < WAL_BYTES_MAX
