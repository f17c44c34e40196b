"""Is there a job here whose scheduler's store is lost? Then its next scheduler can be told to ask the workers for it.

Only what lies in the recovery path is looked at; what the workers report is for the machine (core/scheduler/membership/lost_scheduler_store.py).
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import msgspec

from recovery import clock
from recovery.checkpoint import catalogue
from recovery.core.causes import Cause
from recovery.core.ids import NodeId
from recovery.core.messages import JobHistory
from recovery.core.policy import rebuild
from recovery.core.policy.ranks import natural_key
from recovery.core.records import JobRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import new_job
from recovery.core.scheduler.membership.lost_scheduler_store import REBUILDING
from recovery.errors import CheckpointError, RecoveryPathError, StoreError
from recovery.store.archive import archive_scheduler_store, scheduler_files
from recovery.store.contents import WorkerRecords
from recovery.store.paths import scheduler_path
from recovery.store.reader import read_job, read_scheduler_address, read_worker, stored_workers
from recovery.store.repository import SchedulerStore
from recovery.store.scheduler_address import SchedulerAddress
from recovery.transport.local_address import is_local


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery path still holds of a job that its scheduler's store does not know."""

    path: Path
    remains: tuple[str, ...]
    """Names of what is left of the scheduler's store."""
    pasts: dict[NodeId, JobHistory]
    """By worker, from its own store and directories."""
    unreadable: tuple[str, ...]
    """Why a worker's store says nothing."""
    is_asked_for: bool = False
    """The next scheduler, or the one that runs, asks the workers."""
    scheduler: SchedulerAddress | None = None
    """As the worker with the newest plan has noted it; None: nobody has, or something of the scheduler's store lies here."""

    @property
    def description(self) -> str:
        """What was found, as the end of a sentence."""
        parts = [
            f"{name} (rank {past.rank}, run {past.run}, generation {past.generation}, job {past.job}, "
            f"{len(past.held)} checkpoints, newest step {max((checkpoint.step for checkpoint in past.held), default=past.saved_step)})"
            for name, past in sorted(self.pasts.items(), key=lambda item: natural_key(item[0]))
        ]
        found = [f"the stores of its workers know it: {'; '.join(parts)}"] if parts else []
        found += [f"{', '.join(self.remains)} of its scheduler is left"] if self.remains else []
        found += [f"not readable: {'; '.join(self.unreadable)}"] if self.unreadable else []
        found += ["its scheduler asks the workers for it"] if self.is_asked_for else []
        return "; ".join(found)


def lost_in(path: Path, *, accept_without_wal: bool = False) -> Traces | None:
    """Look for a job that the scheduler's store of this path does not know; None: there is none, or the store knows it.

    Args:
        path: the recovery path.
        accept_without_wal: as MS_STORE_WITHOUT_WAL.

    Raises:
        RecoveryPathError: the path cannot be listed.
        StoreError: a scheduler's store is there and cannot be used as it is.
    """
    if not path.is_dir():
        # The code that opens a store there says what is wrong.
        return None
    remains, job = scheduler_files(path), None
    is_there = scheduler_path(path).name in remains
    if is_there:
        job = read_job(path, accept_without_wal=accept_without_wal)
        if job is not None and not knows_nothing(job):
            return None
    pasts: dict[NodeId, JobHistory] = {}
    unreadable: list[str] = []
    for name in map(NodeId, stored_workers(path)):
        try:
            past = _past_of(read_worker(path, name, accept_without_wal=True))
        except (StoreError, CheckpointError, RecoveryPathError) as error:
            unreadable.append(str(error))
            continue
        if past is not None and (job is None or past.job != job.job):
            pasts[name] = past
    found = Traces(
        path=path,
        remains=() if is_there else remains,
        pasts=pasts,
        unreadable=() if is_there else tuple(unreadable),
        is_asked_for=job is not None and is_asked_for(job),
        scheduler=None if remains else _scheduler_of(path, pasts),
    )
    return found if found.description else None


def scheduler_elsewhere(traces: Traces) -> SchedulerAddress | None:
    """Where the job's scheduler is, if that is another host: its store lies there, and is missed here by nobody.

    Returns:
        None: it was on this host, so its store is lost; or nobody has noted where it was.

    Cost: looks a name up, which may wait for the network.
    """
    address = traces.scheduler
    return address if address is not None and not is_local(address.host) else None


def _scheduler_of(path: Path, pasts: dict[NodeId, JobHistory]) -> SchedulerAddress | None:
    for name in sorted(
        pasts, key=lambda node_id: (pasts[node_id].run, pasts[node_id].generation), reverse=True
    ):
        # A worker that cannot be read any more, or is of an earlier release, says nothing.
        with contextlib.suppress(StoreError, RecoveryPathError):
            address = read_scheduler_address(path, name)
            if address is not None:
                return address
    return None


def knows_nothing(job: JobRecord) -> bool:
    """Was there never a plan? Then the store may have taken the place of another one."""
    return not job.generation and job.run == 1


def is_asked_for(job: JobRecord) -> bool:
    """Does the scheduler of this store ask the workers which job it is of?"""
    return job.cause is Cause.STORE_REBUILT and knows_nothing(job)


def _past_of(worker: WorkerRecords) -> JobHistory | None:
    """What a worker knows; None when it has seen no plan."""
    if worker.job is None or worker.node is None:
        return None
    past = rebuild.past_of(worker.job, worker.node, worker.generations, worker.checkpoints)
    places = [(record.path, record.prefix) for record in worker.directories if record.run == past.run]
    held = catalogue.list_all(places, job=past.job, run=past.run, rank=past.rank).held
    return msgspec.structs.replace(past, held=held)


def ask_workers(path: Path, rules: Rules) -> Path | None:
    """Make a store whose scheduler asks the workers which job it is of. What was left of the old one is archived, and nothing else is touched.

    Args:
        path: the recovery path.
        rules: how many workers and servers the job has. A scheduler that starts takes its own settings.

    Returns:
        Where the rest of the old one lies now; None when there was none.

    Raises:
        StoreError, RecoveryPathError: as `SchedulerStore.open`.
    """
    archived = archive_scheduler_store(path, f"lost-{clock.wall_ms()}")
    job = msgspec.structs.replace(
        new_job(uuid.uuid4().hex, rules), reason=REBUILDING, cause=Cause.STORE_REBUILT
    )
    store = SchedulerStore.open(path)
    try:
        store.apply((job,), wall_ms=clock.wall_ms())
    finally:
        store.close()
    return archived
