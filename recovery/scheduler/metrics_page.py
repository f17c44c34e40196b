"""`GET /metrics`: what this scheduler knows now, beside what its files say of the past.

The past is read in a thread of its own, now and then: what a scraper asks for is answered from what was read last, and no heartbeat waits
for either. What makes figures of it stands above this package and is needed by nobody who asks for no metrics: it is imported by its name, by that
thread.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from pathlib import Path
from typing import Any

from recovery import clock
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.views import figures_view
from recovery.errors import RecoveryError
from recovery.scheduler import side_thread

_logger = logging.getLogger("recovery.scheduler")
_MAKER = "recovery.report.job_metrics"
PAUSE_MS = 10_000
"""Between two readings of the past at least. Scrapers come every 15 s to a minute."""
SHARE = 50
"""And at least so many times as long as a reading took: it has a fiftieth of one core, however long the event log is."""
OLD_MS = 120_000
"""Who asks after so long, and after three pauses, waits for the next reading: no scraper does that, a person with curl does."""
WAIT_S = 2.0
"""For so long. A connection may take 5 s to its answer."""


class MetricsPage:
    """Of one scheduler. All methods are called in its loop."""

    def __init__(self, state: SchedulerState, recovery_path: Path | None) -> None:
        """Nobody has asked yet.

        Args:
            state: what is known now.
            recovery_path: with the files; None: nothing of the past is kept.
        """
        self._state, self._path = state, recovery_path
        self._maker: Any = None
        """A `LiveMetrics`, made by the first reading's thread; None: its module is not imported yet."""
        self._reading: asyncio.Future[None] | None = None
        self._read_ms: int | None = None
        """When the past was read last; None: it was not."""
        self._pause_ms = PAUSE_MS

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """Body and content type. The first who asks waits for the import and the past; who comes again does not.

        Args:
            accept: the header of that name.
        """
        now_ms = clock.monotonic_ms()
        age_ms = None if self._read_ms is None else now_ms - self._read_ms
        if self._reading is None and (age_ms is None or age_ms >= self._pause_ms):
            self._begin()
        if self._reading is not None and (age_ms is None or age_ms > max(OLD_MS, 3 * self._pause_ms)):
            await asyncio.wait((self._reading,), timeout=WAIT_S)
        if self._maker is None:
            return b"# the metrics are not there yet, ask again\n", "text/plain; version=0.0.4"
        run, figures = self._state.job.run, figures_view(self._state, clock.monotonic_ms())
        return await asyncio.to_thread(self._maker.text, run, figures, accept, clock.wall_ms())

    def _begin(self) -> None:
        """Read the past, in a thread that no end of this process waits for."""
        self._reading = asyncio.get_running_loop().create_future()
        generations, run = tuple(self._state.generations), int(self._state.job.run)

        def work() -> int:
            begun_ms = clock.monotonic_ms()
            try:
                if self._maker is None:
                    self._maker = importlib.import_module(_MAKER).LiveMetrics()
                if self._path is not None and generations:
                    self._maker.read(self._path, generations, run)
            except (RecoveryError, OSError) as error:
                _logger.warning("event=metrics_not_read %s", error)
            except Exception:
                _logger.exception("event=inspection_failed path=/metrics")
            return clock.monotonic_ms() - begun_ms

        side_thread.start("metrics", work, self._end)

    def _end(self, took_ms: int) -> None:
        """It was read, or could not be."""
        self._read_ms, self._pause_ms = clock.monotonic_ms(), max(PAUSE_MS, SHARE * took_ms)
        if self._reading is not None:
            self._reading.set_result(None)
            self._reading = None
