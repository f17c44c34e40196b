"""Has the job of this recovery path finished? Asked by a process that nobody answers.

Its scheduler may have ended minutes ago, with success: a worker that comes then would wait for it until MS_TOPO_TIMEOUT, and so would one that was
cut off as its job ended. Where the path is not shared, or cannot be read, nothing can be known here, and it waits.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from recovery import clock
from recovery.core.ids import RunId
from recovery.core.records import JobRecord, JobState
from recovery.errors import RecoveryError

_logger = logging.getLogger("recovery.worker")
_FIRST_MS = 5_000
"""A scheduler that starts with its workers is there by then, and the main thread has the machine to itself meanwhile."""
_EVERY_MS = 5_000
_PATIENCE_S = 2.0
"""For one look. A network file system that hangs must not keep the process from dialling."""


class FinishedJob:
    """Looks into the scheduler's store from outside, seldom, in a thread."""

    def __init__(self, recovery_path: Path | None) -> None:
        """Note where to look; None when recovery is off: nothing is known."""
        self._path = recovery_path
        self._next_look_ms = clock.monotonic_ms() + _FIRST_MS
        self._looking: asyncio.Future[str] | None = None
        self._found = ""
        self._run: tuple[str, RunId] | None = None
        """Which run's end counts; None: any."""

    def was_admitted(self, job: str, run: RunId) -> None:
        """This process belongs to a run now: the end of that one alone counts."""
        self._run, self._found = (job, run), ""

    async def check(self) -> str:
        """Say which run has finished and how, or nothing: it has not, or that cannot be known here."""
        now_ms = clock.monotonic_ms()
        if self._path is None or now_ms < self._next_look_ms:
            return self._found
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._read, self._path))
        self._next_look_ms = now_ms + _EVERY_MS
        done, _ = await asyncio.wait((self._looking,), timeout=_PATIENCE_S)
        self._found = self._looking.result() if done else ""
        return self._found

    def _read(self, recovery_path: Path) -> str:
        from recovery.store.reader import read_job  # noqa: PLC0415 - SQLAlchemy costs 0.2 s, paid while it waits

        try:
            job = read_job(recovery_path)
        except (RecoveryError, OSError) as error:
            _logger.debug("the scheduler's store says nothing: %s", error)
            return ""
        return f"run {job.run}: {job.reason}" if job is not None and self._is_over(job) else ""

    def _is_over(self, job: JobRecord) -> bool:
        return job.state is JobState.FINISHED and self._run in (None, (job.job, job.run))
