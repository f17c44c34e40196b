"""Where a worker's scheduler is: noted by the first write of each process, and read by whoever has the worker's store alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from recovery.store.reader import read_scheduler_address
from recovery.store.repository import WorkerStore
from recovery.store.scheduler_address import SchedulerAddress
from tests.store.any_records import WALL_MS, checkpoint


def write(path: Path, address: tuple[str, int] | None) -> None:
    """A process of its own opens the store and writes twice."""
    store = WorkerStore.open(path, "worker_0", scheduler=address)
    store.apply([checkpoint(1)], wall_ms=WALL_MS)
    store.apply([checkpoint(2)], wall_ms=WALL_MS)
    store.close()


@pytest.mark.parametrize(
    ("address", "text"), [(("10.0.0.9", 8118), "10.0.0.9:8118"), (("::1", 2), "[::1]:2")], ids=["v4", "v6"]
)
def test_an_address_is_noted_by_the_first_write_and_stays(
    tmp_path: Path, address: tuple[str, int], text: str
) -> None:
    for one in (("a", 1), address, None):
        write(tmp_path, one)
    noted = read_scheduler_address(tmp_path, "worker_0")
    assert noted == SchedulerAddress(*address)
    assert str(noted) == text


def test_a_store_of_an_earlier_release_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, None)
    assert read_scheduler_address(tmp_path, "worker_0") is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "host",
        "host 99999",
        "host x",
        " 8118",
        "a\x07 8118",
        pytest.param("host " + "9" * 5_000, id="long"),
    ],
)
def test_what_is_none_is_none(tmp_path: Path, value: str) -> None:
    write(tmp_path, ("host", 1))
    with closing(sqlite3.connect(tmp_path / "workers" / "worker_0.db")) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'scheduler'", (value,))
        connection.commit()
    assert read_scheduler_address(tmp_path, "worker_0") is None
