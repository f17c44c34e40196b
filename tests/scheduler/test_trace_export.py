"""Sending what recoveries cost waits for the first steps, holds nothing up, and says what could not be sent."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.rules import Rules
from recovery.scheduler import trace_export
from recovery.scheduler.trace_export import TraceExport
from tests.core.desk import Desk, running_workers

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_export, "LOOK_S", 0.01)
    monkeypatch.setattr(trace_export, "_AGAIN_MS", 0)


class Job:
    """Two ranks in their first generation."""

    def __init__(self) -> None:
        self.desk = Desk(Rules(worker_count=2))
        self.workers = running_workers(self.desk)

    def step(self, step: int) -> None:
        for worker in self.workers:
            worker.send(m.Heartbeat(sequence=step, generation=Generation(1), step=step))


class Sent:
    """The run of each call."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self._calls = threading.Semaphore(0)

    def note(self, run: int) -> None:
        self.runs.append(run)
        self._calls.release()

    async def next(self) -> None:
        assert await asyncio.to_thread(self._calls.acquire, timeout=WAIT_S)


def sent_with(monkeypatch: pytest.MonkeyPatch, left: list[int]) -> Sent:
    """What is made of the past goes to something that cannot send so many, one call after the other."""
    sent = Sent()

    class Spans:
        def __init__(self, job: str, since_ms: int) -> None:
            assert (job, since_ms > 0) == (job or "job", True)

        def send(self, _path: Path, _generations: Iterable[Any], run: int) -> int:
            sent.note(run)
            return left.pop(0)

    monkeypatch.setitem(sys.modules, "tests.scheduler.spans", SimpleNamespace(RecoverySpans=Spans))
    monkeypatch.setattr(trace_export, "_MAKER", "tests.scheduler.spans")
    return sent


def test_nothing_is_sent_before_all_ranks_have_made_a_step_and_then_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent, job = sent_with(monkeypatch, [0]), Job()
    export = TraceExport(job.desk.machine.state, tmp_path)

    async def tried() -> None:
        keeping = asyncio.create_task(export.keep())
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert sent.runs == []
        job.step(1)
        await sent.next()
        for _ in range(20):
            await asyncio.sleep(0.01)
        keeping.cancel()

    asyncio.run(tried())
    assert sent.runs == [1]


def test_what_could_not_be_sent_is_said_once_and_sent_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent, job = sent_with(monkeypatch, [2, 2, 0]), Job()
    job.step(1)

    async def tried() -> None:
        keeping = asyncio.create_task(TraceExport(job.desk.machine.state, tmp_path).keep())
        for _ in range(3):
            await sent.next()
        keeping.cancel()

    with caplog.at_level(logging.WARNING, "recovery.scheduler"):
        asyncio.run(tried())
    assert caplog.text.count("event=traces_not_sent recoveries=2 ") == 1


def test_without_the_libraries_the_extra_is_named_and_that_is_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "recovery.report.recovery_spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    job = Job()
    job.step(1)

    async def to_its_end() -> None:
        async with asyncio.timeout(WAIT_S):
            await TraceExport(job.desk.machine.state, tmp_path).keep()

    with caplog.at_level(logging.WARNING, "recovery.scheduler"):
        asyncio.run(to_its_end())
    [said] = caplog.messages
    assert said.startswith("event=traces_not_sent OTEL_EXPORTER_OTLP_ENDPOINT is set, and opentelemetry")
    assert said.endswith("is not installed: pip install 'recovery-engine[otel]'")
