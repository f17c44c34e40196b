"""Is there a job here whose scheduler's store is lost? And its store again, from the workers' own stores and files.

Only what lies in the recovery path is looked at; what running workers report is for the machine (core/scheduler/membership/lost_scheduler_store.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from recovery import clock
from recovery.checkpoint import catalogue, jobs
from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import HeldCheckpoint, JobHistory, Role
from recovery.core.policy import rebuild
from recovery.core.policy.ranks import first_id, natural_key
from recovery.core.policy.rebuild import Rebuilt, Unclear
from recovery.core.records import (
    DirectoryRecord,
    EventKind,
    EventRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    Record,
    RunRecord,
    SlotRecord,
)
from recovery.core.scheduler.membership.lost_scheduler_store import REBUILDING
from recovery.errors import CheckpointError, RecoveryPathError, StoreError, StoreLostError
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
    nodes: dict[NodeId, NodeRecord]
    """Their own rows; a store of an earlier release has none."""
    unreadable: tuple[str, ...]
    """Why a worker's store says nothing."""
    rebuilding: bool = False
    """An earlier process of the scheduler has begun to ask the workers."""
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
        found += ["its scheduler has begun to ask the workers for it"] if self.rebuilding else []
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
        if job is not None and not _knows_nothing(job):
            return None
    rebuilding = job is not None and job.cause is Cause.STORE_REBUILT
    pasts: dict[NodeId, JobHistory] = {}
    nodes: dict[NodeId, NodeRecord] = {}
    unreadable: list[str] = []
    for name in map(NodeId, stored_workers(path)):
        try:
            worker = read_worker(path, name, accept_without_wal=True)
            past = _past_of(worker)
        except (StoreError, CheckpointError, RecoveryPathError) as error:
            unreadable.append(str(error))
            continue
        if past is not None and (job is None or past.job != job.job):
            pasts[name] = past
            if worker.node is not None:
                nodes[name] = worker.node
    found = Traces(
        path=path,
        remains=() if is_there else remains,
        pasts=pasts,
        nodes=nodes,
        unreadable=() if is_there else tuple(unreadable),
        rebuilding=rebuilding,
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


def _knows_nothing(job: JobRecord) -> bool:
    """Was there never a plan? Then the store may have taken the place of another one."""
    return not job.generation and job.run == 1


def _past_of(worker: WorkerRecords) -> JobHistory | None:
    """What a worker knows; None when it has seen no plan."""
    if worker.job is not None and worker.node is not None:
        past = rebuild.past_of(worker.job, worker.node, worker.generations, worker.checkpoints)
        places = [(record.path, record.prefix) for record in worker.directories if record.run == past.run]
        return msgspec.structs.replace(past, held=_held(places, past.job, past.run, past.rank))
    return past_of_files(worker.directories)


def past_of_files(
    directories: Collection[DirectoryRecord], *, job: str = "", rank: int | None = None
) -> JobHistory | None:
    """What the checkpoints of one rank say of its job; None: there are none.

    Args:
        directories: where it has saved, and under which prefix.
        job: which job; empty: that of the newest.
        rank: which; None: that of the newest.
    """
    found = [
        manifest
        for place in directories
        for manifest in jobs.manifests_in(Path(place.path))
        if jobs.prefix_of(manifest) == place.prefix
        and job in ("", manifest.job)
        and rank in (None, manifest.rank)
    ]
    if not found:
        return None
    newest = max(found, key=lambda manifest: (manifest.run, manifest.generation, manifest.step))
    places = [(record.path, record.prefix) for record in directories if record.run == newest.run]
    return JobHistory(
        job=newest.job,
        run=RunId(newest.run),
        rank=Rank(newest.rank),
        worker_count=newest.world_size,
        server_count=0,
        incarnation=Incarnation(newest.incarnation),
        generation=Generation(newest.generation),
        scheduler_incarnation=Incarnation(1),
        held=_held(places, newest.job, newest.run, newest.rank),
        saved_step=newest.step,
    )


def _held(places: list[tuple[str, str]], job: str, run: int, rank: int) -> tuple[HeldCheckpoint, ...]:
    return catalogue.list_all(places, job=job, run=run, rank=rank).held


def records_of(traces: Traces, source: str = "") -> tuple[Record, ...]:
    """The rows of a scheduler's store, as far as the traces show.

    Args:
        traces: what was found.
        source: where, for the event log; empty: in the recovery path.

    Raises:
        StoreLostError: they contradict each other, or not every rank has left a trace.
    """
    built = (
        rebuild.rebuild(traces.pasts) if traces.pasts else Unclear("is named by nothing that is left of it")
    )
    if isinstance(built, Unclear):
        raise StoreLostError(path=str(traces.path), found=f"{traces.description}, but {built.reason}")
    missing = built.missing()
    if missing:
        ranks = ", ".join(str(rank) for rank in missing)
        raise StoreLostError(
            path=str(traces.path),
            found=f"{traces.description}, but no store here is of rank {ranks}: start its scheduler with MS_REBUILD_STORE=1, it asks the workers",
        )
    # A job that had a plan has given its ranks. Servers leave no trace, so they are waited for as at the beginning.
    formed = bool(built.generations) and not built.server_count
    job = JobRecord(
        job=built.job,
        worker_count=built.worker_count,
        server_count=built.server_count,
        run=built.run,
        state=JobState.INTERRUPTED if formed else JobState.FORMING,
        generation=built.generation,
        scheduler_incarnation=built.scheduler_incarnation,
        reason=REBUILDING,
        cause=Cause.STORE_REBUILT,
    )
    unsure = [
        "whose rejoin window was open: every process that was here counts as live for one lease",
        *(f"what is not readable: {text}" for text in traces.unreadable),
    ]
    event = EventRecord(
        kind=EventKind.STORE_REBUILT,
        run=built.run,
        generation=built.generation,
        reason=f"from what lies in {source or traces.path}",
        details=built.report(*unsure),
    )
    slots = rebuild.slot_names({name: first_id(name) for name in built.ranks})
    return (
        job,
        RunRecord(run=built.run),
        *(_node(traces, built, name) for name in built.reports),
        *(
            SlotRecord(node_id=name, slot=slots.get(name, ""))
            for name in built.reports
            if slots.get(name, "") != name
        ),
        *built.generations,
        *built.checkpoints,
        event,
    )


def _node(traces: Traces, built: Rebuilt, name: NodeId) -> NodeRecord:
    """As it was when its last plan came. A living process resumes by its token; another one waits out a lease.

    An id whose rank another one has taken over is lost for long, so it may return at once.
    """
    past, known = traces.pasts[name], traces.nodes.get(name)
    return NodeRecord(
        node_id=name,
        role=Role.WORKER,
        rank=built.ranks.get(name),
        incarnation=past.incarnation,
        state=NodeState.LIVE if name in built.ranks else NodeState.LOST,
        token_digest=known.token_digest if known is not None else "",
        admission_request=known.admission_request if known is not None else "",
        host=known.host if known is not None else "",
        pid=known.pid if known is not None else 0,
        generation=past.generation,
        step=max((checkpoint.step for checkpoint in past.held), default=0),
        reason=rebuild.OF_REBUILT_STORE,
    )


def write(path: Path, records: Sequence[Record]) -> Path | None:
    """Make a scheduler's store of these rows. What was left of the old one is archived, and nothing else is touched.

    Returns:
        Where the rest of the old one lies now; None when there was none.

    Raises:
        StoreError, RecoveryPathError: as `SchedulerStore.open`.
    """
    archived = archive_scheduler_store(path, f"lost-{clock.wall_ms()}")
    store = SchedulerStore.open(path)
    try:
        store.apply(records, wall_ms=clock.wall_ms())
    finally:
        store.close()
    return archived
