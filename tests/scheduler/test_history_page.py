"""A scheduler's history, for the live page on another host: read beside the loop, and for a while answered from what was read last."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.report import page_history
from recovery.scheduler.history_page import HistoryPage
from tests.report import long_job

READ = page_history.history_of_path


async def answer(page: HistoryPage) -> dict[str, Any]:
    body, content_type = await page.answer("")
    assert content_type == "application/json"
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each reading."""
    found: list[str] = []

    def read(path: Path, now_ms: int) -> dict[str, Any]:
        found.append(threading.current_thread().name)
        return READ(path, now_ms)

    monkeypatch.setattr(page_history, "history_of_path", read)
    return found


def test_it_is_read_once_for_many_who_look_and_beside_the_loop(tmp_path: Path, reads: list[str]) -> None:
    long_job.write(tmp_path, nodes=2, failures=3)

    async def main() -> list[dict[str, Any]]:
        page = HistoryPage(tmp_path)
        at_once = await asyncio.gather(*(answer(page) for _ in range(5)))
        return [*at_once, *[await answer(page) for _ in range(5)]]

    found = asyncio.run(main())
    assert reads == ["history"]
    assert all(one == found[0] for one in found)
    assert (found[0]["failures"], len(found[0]["rows"])) == (3, 2)


def test_a_job_that_keeps_nothing_says_so() -> None:
    assert "keeps no files" in asyncio.run(answer(HistoryPage(None)))["error"]


def test_files_that_cannot_be_read_are_told_and_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "holds no scheduler.db" in asyncio.run(answer(HistoryPage(tmp_path / "none")))["error"]
    assert "event=history_not_read" in caplog.text
