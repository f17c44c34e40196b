"""Sends what each recovery cost to where OTEL_EXPORTER_OTLP_ENDPOINT says, once all ranks have made a step behind it.

What makes spans of it stands above this package, and needs what is not installed by default: as that of the metrics (metrics_page.py) it is imported by its
name, by a thread of its own. No heartbeat waits for it, and no end of this process.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

from recovery import clock
from recovery.core.records import JobState
from recovery.core.scheduler.state import SchedulerState
from recovery.errors import RecoveryError
from recovery.scheduler import side_thread

_logger = logging.getLogger("recovery.scheduler")
_MAKER = "recovery.report.recovery_spans"
LOOK_S = 1.0
_AGAIN_MS = 60_000
"""What could not be sent is tried again so much later, if no next recovery comes before."""


class TraceExport:
    """Of one scheduler. All methods are called in its loop."""

    def __init__(self, state: SchedulerState, recovery_path: Path | None) -> None:
        """Nothing is sent yet.

        Args:
            state: what is known now.
            recovery_path: with the event log; None: nothing is sent.
        """
        self._state, self._path, self._since_ms = state, recovery_path, clock.wall_ms()
        self._maker: Any = None
        """A `RecoverySpans`, made by the first thread; None: its module is not imported yet."""
        self._sent = 0
        """The newest generation whose begin was sent."""
        self._busy, self._gave_up = False, recovery_path is None
        self._again_ms, self._said = 0, ""

    async def keep(self) -> None:
        """Look every second until this is cancelled, or traces cannot be made."""
        while not self._gave_up:
            await asyncio.sleep(LOOK_S)
            generation = int(self._state.job.generation)
            if (
                generation != self._sent
                and not self._busy
                and self._trains()
                and clock.monotonic_ms() >= self._again_ms
            ):
                self._begin(generation)

    def _trains(self) -> bool:
        state = self._state
        if not state.generations or state.job.state not in (JobState.RUNNING, JobState.FINISHED):
            return False
        began_at = state.generations[-1].step
        return all(node.record.step > began_at for node in state.workers)

    def _begin(self, generation: int) -> None:
        self._busy = True
        job, generations, run = self._state.job.job, tuple(self._state.generations), int(self._state.job.run)

        def work() -> tuple[int | None, str]:
            left: int | None = 1
            why = ""
            try:
                if self._maker is None:
                    self._maker = importlib.import_module(_MAKER).RecoverySpans(job, self._since_ms)
                left = self._maker.send(self._path, generations, run)
                if left:
                    why = f"recoveries={left} the collector did not take them; they are sent again"
            except ImportError as error:
                why = f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and {error.name} is not installed: pip install 'recovery-engine[otel]'"
                left = None
            except (RecoveryError, OSError) as error:
                why = str(error)
            except Exception:
                _logger.exception("event=traces_not_sent by a mistake; none are sent any more")
                left = None
            return left, why

        side_thread.start("traces", work, partial(self._end, generation))

    def _end(self, generation: int, outcome: tuple[int | None, str]) -> None:
        """All were sent, or so many are left, and why; None: no more are made."""
        left, why = outcome
        self._busy, self._gave_up = False, left is None
        if why and why != self._said:
            _logger.warning("event=traces_not_sent %s", why)
        self._said = why
        if left:
            self._again_ms = clock.monotonic_ms() + _AGAIN_MS
        else:
            self._sent = generation
