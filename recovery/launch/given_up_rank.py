"""The rank of a process that is not started again: does another process take it? The scheduler decides, and may be started again meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from recovery import clock
from recovery.launch.job_view import KnownJob, SchedulerQueries

_VERDICT_MS = 15_000
"""How long the scheduler may take to find another process for a rank, or none: three offers that nobody answers."""
_VERDICT_POLL_S = 0.2
_SILENT_MS = 5_000
"""How long a scheduler that has answered before may be silent meanwhile: it is started again in a second or two."""


async def is_taken(
    scheduler: SchedulerQueries,
    is_needed: Callable[[KnownJob], bool],
    report: Callable[[], Awaitable[None]],
    *,
    informed: int,
    was_heard: bool,
) -> bool:
    """Wait until the rank has another process, or the job is over; False where neither is known in time.

    Args:
        scheduler: is asked.
        is_needed: whether a job still waits for the process that is given up.
        report: says once more that it is. A scheduler stores nothing of that, so each one that was started meanwhile is informed.
        informed: the incarnation of the scheduler that knows; 0: of none.
        was_heard: whether any scheduler of the job has ever answered.
    """
    heard_ms = clock.monotonic_ms()
    give_up_ms = heard_ms + _VERDICT_MS
    while clock.monotonic_ms() < give_up_ms:
        job = await scheduler.known_job()
        if job is not None:
            heard_ms = clock.monotonic_ms()
            if job.is_over:
                return False
            if not is_needed(job):
                return True
            if job.scheduler.incarnation > informed:
                informed = job.scheduler.incarnation
                await report()
        elif not was_heard or clock.monotonic_ms() - heard_ms > _SILENT_MS:
            return False
        await asyncio.sleep(_VERDICT_POLL_S)
    return False
