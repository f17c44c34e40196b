"""How long a store's owner was away is counted by the machine, across its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import clock
from recovery.store.repository import SchedulerStore
from tests.store import samples


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A store whose last write is a while ago."""
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job()], wall_ms=1)
    store.close()
    return tmp_path


def _away_ms(path: Path) -> int | None:
    store = SchedulerStore.open(path)
    away_ms = store.away_ms()
    store.close()
    return away_ms


def test_the_time_since_the_last_write_is_known_to_the_next_process(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = clock.boot_ms()
    monkeypatch.setattr(clock, "boot_ms", lambda: now_ms + 60_000)
    away_ms = _away_ms(written)
    assert away_ms is not None
    assert 60_000 <= away_ms < 70_000


def test_after_another_boot_of_the_machine_it_is_unknown(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "boot_id", lambda: "another")
    assert _away_ms(written) is None


def test_a_machine_that_cannot_say_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "boot_id", lambda: "")
    store = SchedulerStore.open(tmp_path)
    store.apply([samples.job()], wall_ms=1)
    assert store.away_ms() is None
    store.close()
    monkeypatch.undo()
    assert _away_ms(tmp_path) is None


def test_a_store_without_a_write_was_never_away(tmp_path: Path) -> None:
    assert _away_ms(tmp_path) is None


def test_a_kernel_without_these_files_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert clock.boot_id() == ""
