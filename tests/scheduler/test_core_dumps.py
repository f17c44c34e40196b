"""The scheduler's memory stays out of core dumps: they lie where nobody looks for secrets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from recovery.scheduler import startup
from tests.protocol.conftest import Scheduler


def test_a_core_dump_of_the_scheduler_holds_none_of_its_memory(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    try:
        kept = Path(f"/proc/{scheduler.process.pid}/coredump_filter").read_text().strip()
    finally:
        scheduler.process.kill()
        scheduler.process.wait()
    assert int(kept, 16) == 0


def test_where_the_kernel_does_not_let_it_choose_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(startup, "_CORE_DUMP_FILTER", tmp_path / "nowhere" / "coredump_filter")
    startup.keep_memory_out_of_core_dumps()
    assert "event=core_dumps_hold_memory" in caplog.text
