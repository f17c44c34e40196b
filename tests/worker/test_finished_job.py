"""The end of a job that nobody is left to tell of: a process reads it in the scheduler's store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from recovery.core.ids import RunId
from recovery.core.records import JobState
from recovery.store.repository import SchedulerStore
from recovery.worker.finished_job import FinishedJob
from tests.pace import HANG_S
from tests.store.any_records import WALL_MS, job


async def _found(looking: FinishedJob) -> str:
    """What it finds; it looks seldom."""
    while True:
        if found := await looking.check():
            return found
        await asyncio.sleep(0.1)


def test_of_a_process_that_was_admitted_the_end_of_its_own_run_counts(tmp_path: Path) -> None:
    stored = msgspec.structs.replace(job(), state=JobState.FINISHED, reason="all are done")
    store = SchedulerStore.open(tmp_path)
    store.apply((stored,), wall_ms=WALL_MS)
    store.close()
    never_let_in, own, next_run, other_job = (FinishedJob(tmp_path) for _ in range(4))
    own.was_admitted(stored.job, stored.run)
    next_run.was_admitted(stored.job, RunId(stored.run + 1))
    other_job.was_admitted("another", stored.run)

    said = f"run {stored.run}: all are done"

    async def look() -> None:
        found = asyncio.gather(_found(never_let_in), _found(own))
        assert list(await asyncio.wait_for(found, HANG_S)) == [said, said]
        assert [await next_run.check(), await other_job.check()] == ["", ""]

    asyncio.run(look())
