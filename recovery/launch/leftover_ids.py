"""What the scheduler knows of this host's slots before their first processes start: an earlier launcher may have left lost ids behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from recovery import clock
from recovery.launch.job_view import KnownJob, SchedulerQueries

_ASK_AGAIN_S = 0.05
_ANSWER_S = 1.0
"""How long one answer may take: of a host that is not there nobody says that it is not."""
SCHEDULER_HERE_S = 10.0
"""A scheduler that this launcher starts on the store of a job answers within two seconds."""


class EarlierJob:
    """One question for all processes of a launcher, asked before their first start."""

    def __init__(
        self, contact: SchedulerQueries, *, meanwhile: Callable[[], Awaitable[None]], patience_s: float
    ) -> None:
        """Nothing is asked yet.

        Args:
            contact: with the scheduler.
            meanwhile: what the first start waits for anyway. So long a scheduler that does not answer costs nothing.
            patience_s: how long it is waited for in any case.
        """
        self._contact, self._meanwhile, self._patience_ms = contact, meanwhile, patience_s * 1000
        self._asking: asyncio.Task[KnownJob | None] | None = None

    async def known(self) -> KnownJob | None:
        """What is known of the job; None: no answer came in time."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> KnownJob | None:
        begun_ms, meanwhile = clock.monotonic_ms(), asyncio.ensure_future(self._meanwhile())
        try:
            while (job := await self._answer()) is None:
                if meanwhile.done() and clock.monotonic_ms() - begun_ms >= self._patience_ms:
                    break
                await asyncio.sleep(_ASK_AGAIN_S)
        finally:
            meanwhile.cancel()
        return job

    async def _answer(self) -> KnownJob | None:
        try:
            return await asyncio.wait_for(self._contact.known_job(), _ANSWER_S)
        except asyncio.TimeoutError:
            return None
