"""What a scheduler's files say of the past, read now and then in a thread of its own.

No heartbeat waits for it, and who asks again is answered from what was read last. What makes figures and pages of it stands above this package and is needed by nobody who asks for none: it is imported by its name, by that thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from recovery import clock
from recovery.errors import RecoveryError
from recovery.scheduler import side_thread

_logger = logging.getLogger("recovery.scheduler")
PAUSE_MS = 10_000
"""Between two readings at least. Scrapers come every 15 s to a minute."""
SHARE = 50
"""And at least so many times as long as a reading took: it has a fiftieth of one core, however long the event log is."""
OLD_MS = 120_000
"""Who asks after so long, and after three pauses, waits for the next reading: no scraper does that, a person with curl does."""
WAIT_S = 2.0
"""For so long. A connection may take 5 s to its answer."""


class PastReader:
    """Of one page. All methods are called in the scheduler's loop."""

    def __init__(self, name: str, read: Callable[[], None], *, pause_ms: int = PAUSE_MS) -> None:
        """Nobody has asked yet.

        Args:
            name: of the page, for the log, and of the thread.
            read: reads; called in the thread, one call at a time. What it raises is logged.
            pause_ms: between two readings, at least.
        """
        self._name, self._read, self._least_ms = name, read, pause_ms
        self._reading: asyncio.Future[None] | None = None
        self._read_ms: int | None = None
        """When the past was read last; None: it was not."""
        self._pause_ms = pause_ms

    async def refresh(self) -> None:
        """Begin a reading where one is due. Who asks first, or after long, waits for it."""
        now_ms = clock.monotonic_ms()
        age_ms = None if self._read_ms is None else now_ms - self._read_ms
        if self._reading is None and (age_ms is None or age_ms >= self._pause_ms):
            self._begin()
        if self._reading is not None and (age_ms is None or age_ms > max(OLD_MS, 3 * self._pause_ms)):
            await asyncio.wait((self._reading,), timeout=WAIT_S)

    def _begin(self) -> None:
        """Read, in a thread that no end of this process waits for."""
        self._reading = asyncio.get_running_loop().create_future()

        def work() -> int:
            begun_ms = clock.monotonic_ms()
            try:
                self._read()
            except (RecoveryError, OSError) as error:
                _logger.warning("event=%s_not_read %s", self._name, error)
            except Exception:
                _logger.exception("event=inspection_failed path=/%s", self._name)
            return clock.monotonic_ms() - begun_ms

        side_thread.start(self._name, work, self._end)

    def _end(self, took_ms: int) -> None:
        """It was read, or could not be."""
        self._read_ms, self._pause_ms = clock.monotonic_ms(), max(self._least_ms, SHARE * took_ms)
        if self._reading is not None:
            self._reading.set_result(None)
            self._reading = None
