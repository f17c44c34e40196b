"""Was a worker done when it ended with exit code 0? The code alone does not say: a script may call `os._exit(0)` in the middle of training.

The scheduler knows. It reports the job as finished to its workers only once that is written, so a worker that was done finds it so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from recovery import clock
from recovery.core.causes import Cause
from recovery.core.ids import NodeId
from recovery.core.records import JobRecord, JobState
from recovery.launch import console
from recovery.launch.placement import Placed, ProcessKind

_RETRY_S = 0.2
_PATIENCE_MS = 10_000
"""How long a scheduler that does not answer is asked. Its relaunch takes a second or two; one whose job is over does not come back."""


class WorkerCompletion:
    """What one launcher knows of the end of its job."""

    def __init__(
        self, ask: Callable[[], Awaitable[Any]], read_job: Callable[[], JobRecord | None] = lambda: None
    ) -> None:
        """Know nothing yet.

        Args:
            ask: gives the scheduler's `/status`. Whatever it raises means that nothing is known.
            read_job: gives what the scheduler's store says; None: there is none on this host.
        """
        self._ask, self._read_job = ask, read_job
        self.is_finished = False
        """Is it known that the job has finished? By the scheduler, or by a worker of this host that has heard so."""
        self._job = ""
        """The job that this launcher's processes belong to; empty: not known yet."""
        self._asking = asyncio.Lock()

    def note_job(self, job: str) -> None:
        """The scheduler says whose it is. The first answer stays: a later one may be of the next job at the same address."""
        self._job = self._job or job

    async def refresh(self) -> bool:
        """Ask once whether the job has finished: each worker that could say so may have been killed before it heard that.

        Returns:
            False: that is not known.
        """
        with contextlib.suppress(Exception):
            return self.is_finished or self._take(await self._ask()) is not None
        return False

    def read_stored(self, *, is_here: bool) -> bool | None:
        """Has the job finished, by the store of its scheduler, which has ended?

        Args:
            is_here: the scheduler was a process of this launcher. Else the store at its path may be of another job.

        Returns:
            None: the store is not here.
        """
        job = self._read_job()
        if job is None or not (is_here or job.job == self._job):
            return None
        return job.state is JobState.FINISHED

    def _take(self, status: dict[str, Any]) -> bool | None:
        """Take from an answer whether the job has finished; None: the scheduler of another job has given it."""
        if self._job and status["job"] != self._job:
            return None
        self.is_finished = status["state"] == JobState.FINISHED.value
        return self.is_finished

    async def includes(self, placed: Placed, node_id: NodeId) -> bool:
        """Was this process done when it ended with 0, under this node id? A scheduler ends so only after a finished job."""
        if placed.kind is ProcessKind.SCHEDULER:
            self.is_finished = True
            return True
        return await self.includes_worker(node_id, placed.name)

    async def includes_worker(self, node_id: NodeId, name: str) -> bool:
        """Was this worker done when it ended with 0? One that no scheduler knows anything of is believed, which the console says."""
        give_up_ms = clock.monotonic_ms() + _PATIENCE_MS
        while True:
            async with self._asking:
                if self.is_finished:
                    return True
                try:
                    status = await self._ask()
                except Exception as error:  # noqa: BLE001 - which the console says below
                    reason = str(error)
                else:
                    finished = self._take(status)
                    if finished is None:
                        console.say(
                            f"{name}: the scheduler of another job answers; its exit code 0 is believed"
                        )
                        return True
                    return finished or _left_in_order(status, node_id)
            if clock.monotonic_ms() >= give_up_ms:
                console.say(
                    f"{name}: no scheduler says whether it was done ({reason}); its exit code 0 is believed",
                    style="yellow",
                )
                return True
            await asyncio.sleep(_RETRY_S)


def _left_in_order(status: dict[str, Any], node_id: NodeId) -> bool:
    """Its job is over, and the next run has begun on the same path."""
    causes = [node.get("cause") for node in status["nodes"] if node["node_id"] == node_id]
    return causes == [Cause.RUN_FINISHED.value]
