"""`GET /metrics`: what this scheduler knows now, beside what its files say of the past."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

from recovery import clock
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.views import figures_view
from recovery.scheduler.past_reader import PastReader

_MAKER = "recovery.report.job_metrics"


class MetricsPage:
    """Of one scheduler."""

    def __init__(self, state: SchedulerState, recovery_path: Path | None) -> None:
        """Nobody has asked yet.

        Args:
            state: what is known now.
            recovery_path: with the files; None: nothing of the past is kept.
        """
        self._state, self._path = state, recovery_path
        self._maker: Any = None
        """A `LiveMetrics`, made by the first reading's thread; None: its module is not imported yet."""
        self._past = PastReader("metrics", self._read)

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """Body and content type. The first who asks waits for the import and the past; who comes again does not. Called in the scheduler's loop.

        Args:
            accept: the header of that name.
        """
        await self._past.refresh()
        if self._maker is None:
            return b"# the metrics are not there yet, ask again\n", "text/plain; version=0.0.4"
        run, figures = self._state.job.run, figures_view(self._state, clock.monotonic_ms())
        return await asyncio.to_thread(self._maker.text, run, figures, accept, clock.wall_ms())

    def _read(self) -> None:
        generations, run = tuple(self._state.generations), int(self._state.job.run)
        if self._maker is None:
            self._maker = importlib.import_module(_MAKER).LiveMetrics()
        if self._path is not None and generations:
            self._maker.read(self._path, generations, run)
