"""Everything that one recovery path says about its job, read at once."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum
from pathlib import Path

import msgspec

from recovery.core.copy_records import CopyRecord, CopyState
from recovery.core.ids import Generation, Incarnation, NodeId
from recovery.core.messages import ProcessIdentity, Role
from recovery.core.records import (
    CheckpointRecord,
    GenerationRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    RunRecord,
    StepRecord,
    TrainingEndRecord,
)
from recovery.core.scheduler.membership import death_proof
from recovery.errors import RecoveryError, RecoveryPathError, StoreLostError
from recovery.scheduler.store_rebuild import Traces, lost_in, scheduler_elsewhere
from recovery.store.contents import SchedulerRecords
from recovery.store.lock import owner_of
from recovery.store.paths import scheduler_path
from recovery.store.reader import (
    StoredEvent,
    WorkerNotes,
    Written,
    read_events,
    read_not_ready,
    read_notes,
    read_scheduler,
    stored_workers,
)
from recovery.store.scheduler_address import SchedulerAddress

_ALL = 10_000_000
"""Events: more than any event log has."""


class SlotState(str, Enum):
    """What a node holds."""

    RANK = "rank"
    """A slot: a rank, or the slot for one while the job forms."""
    STANDBY = "standby"
    """None: it waits to take a rank over."""
    REPLACED = "replaced"
    """None any more: its rank was taken over."""


def slot_state(slot: str, generation: int) -> SlotState:
    """What a node holds.

    Args:
        slot: the node id that held its slot first; empty: it holds none.
        generation: the last one whose plan its incarnation was given; 0: none.
    """
    if slot:
        return SlotState.RANK
    return SlotState.REPLACED if generation else SlotState.STANDBY


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's state as of its last commit, and whether it runs."""

    path: Path
    job: JobRecord
    runs: tuple[RunRecord, ...]
    nodes: tuple[NodeRecord, ...]
    """By rank; those without one behind."""
    slots: dict[NodeId, str]
    """Of the nodes that hold another slot than that of their own name: the node id that held it first; empty: they hold none."""
    generations: tuple[GenerationRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    copies: tuple[CopyRecord, ...] = ()
    """On nodes of other ranks, as far as they are known."""
    live_generations: frozenset[Generation] = frozenset()
    """Those of the newest run whose plans went to ranks' memories."""
    warming_up: frozenset[NodeId] = frozenset()
    """Nodes that were admitted, and have neither had a plan nor said that they can follow one."""
    processes: dict[NodeId, ProcessIdentity] = {}
    """Which process each node's newest one is, where it said so."""
    training_end: TrainingEndRecord | None = None
    """Where a script has ended the training of the newest run; None: it has not."""
    scheduler_pid: int | None
    """Of the process that has the store open on this host; None: none has."""

    @property
    def workers(self) -> tuple[NodeRecord, ...]:
        """The nodes of the world: those that hold a slot."""
        return tuple(
            node
            for node in self.nodes
            if node.role is Role.WORKER and self.slot_state(node) is SlotState.RANK
        )

    @property
    def standbys(self) -> tuple[NodeRecord, ...]:
        """The nodes that wait for a rank to take over, whether they are heard or not."""
        return tuple(node for node in self.nodes if self.slot_state(node) is SlotState.STANDBY)

    def slot_state(self, node: NodeRecord) -> SlotState:
        """What a node holds."""
        return slot_state(self.slot_of(node), node.generation)

    def slot_of(self, node: NodeRecord) -> str:
        """The node id that held its slot first; empty: it holds none."""
        return self.slots.get(node.node_id, str(node.node_id))

    @property
    def current(self) -> GenerationRecord | None:
        """The newest generation of the run."""
        of_run = [record for record in self.generations if record.run == self.job.run]
        return of_run[-1] if of_run else None

    @property
    def lost(self) -> tuple[NodeRecord, ...]:
        """Nodes that are gone and may come back."""
        return tuple(node for node in self.nodes if node.state in (NodeState.LOST, NodeState.SUSPECT))


def read_stored(path: Path) -> Stored:
    """Read a recovery path.

    Raises:
        RecoveryPathError: there is no store, or no job in it yet; or only those of workers, whose scheduler is on another host.
        StoreLostError: there is a job, and its scheduler's store is not there.
        StoreError: it cannot be used as it is; see its classes.
    """
    check_is_here(path)
    owner = owner_of(scheduler_path(path))
    state = read_scheduler(path)
    if state.job is None:
        raise RecoveryPathError(
            path=str(path), reason="holds a store without a job", next_step="Start the job's scheduler first."
        )
    had_no_plan = frozenset(
        node.node_id for node in state.nodes if node.state is NodeState.LIVE and not node.generation
    )
    return Stored(
        path=path,
        job=state.job,
        runs=state.runs,
        slots={record.node_id: record.slot for record in state.slots},
        nodes=tuple(sorted(state.nodes, key=lambda node: (node.rank is None, node.rank or 0, node.node_id))),
        generations=state.generations,
        checkpoints=state.checkpoints,
        copies=tuple(copy for copy in state.copies if copy.state is CopyState.HELD),
        live_generations=frozenset(
            source.generation for source in state.live_sources if source.run == state.job.run
        ),
        training_end=next(
            (row for row in state.training_ends if row.run == state.job.run and row.step), None
        ),
        # The event log may be long, and mostly there is nobody to ask it about.
        warming_up=had_no_plan & read_not_ready(path) if had_no_plan else frozenset(),
        processes=_processes(state),
        scheduler_pid=owner.pid if owner is not None else None,
    )


def _processes(state: SchedulerRecords) -> dict[NodeId, ProcessIdentity]:
    newest = {(node.node_id, node.incarnation) for node in state.nodes}
    return {
        record.node_id: death_proof.identity_of(record)
        for record in state.processes
        if (record.node_id, record.incarnation) in newest
    }


def check_is_here(path: Path) -> None:
    """See that a job's scheduler's store is not missing. A path without any job passes.

    Raises:
        RecoveryPathError, StoreLostError, StoreError: as `read`.
    """
    part = workers_part(path)
    if part is not None:
        lost, scheduler = part
        raise RecoveryPathError(
            path=str(lost.path),
            reason=f"holds workers' stores only ({', '.join(sorted(lost.pasts))}): the job's scheduler, and with it its store, is on "
            f"another host, at {scheduler}",
            next_step=f"Run this on that host, or ask the scheduler: `recovery status --connect {scheduler}`.",
        )


def workers_part(path: Path) -> tuple[Traces, SchedulerAddress] | None:
    """Look whether a path has only the workers' part of a job, whose scheduler is on another host.

    Returns:
        What the workers have noted, and where the scheduler is; None: the scheduler's store is here, or there is no job.

    Raises:
        StoreLostError: the scheduler's store was here, or nobody knows where.
        RecoveryPathError, StoreError: as `lost_in`.
    """
    lost = lost_in(path)
    if lost is None:
        return None
    elsewhere = scheduler_elsewhere(lost)
    if elsewhere is None:
        raise StoreLostError(path=str(path), found=lost.description)
    return lost, elsewhere


def read_workers_only(path: Path) -> tuple[Stored, str] | None:
    """Look whether a path holds the workers' part alone: the scheduler, and with it its store, is on another host.

    Returns:
        What is known of the job without its scheduler, and where that is; None: the path holds more, or nothing.

    Raises:
        StoreLostError, RecoveryPathError, StoreError: as `workers_part`.
    """
    try:
        has_store = scheduler_path(path).exists()
    except OSError:
        # It cannot be looked at, as little as what is said of it here.
        has_store = True
    if has_store:
        # The code that checks that store says what is wrong with it.
        return None
    part = workers_part(path)
    if part is None:
        return None
    lost, address = part
    newest = max(lost.pasts.values(), key=lambda past: (past.run, past.generation))
    job = JobRecord(
        job=newest.job,
        worker_count=newest.worker_count,
        server_count=newest.server_count,
        run=newest.run,
        state=JobState.RUNNING,
        generation=newest.generation,
        scheduler_incarnation=newest.scheduler_incarnation,
    )
    stored = Stored(
        path=path,
        job=job,
        runs=(),
        nodes=(),
        slots={},
        generations=(),
        checkpoints=(),
        scheduler_pid=None,
    )
    return stored, str(address)


def event_log(path: Path) -> tuple[StoredEvent, ...]:
    """Every event, oldest first. Errors as of `read`."""
    return read_events(path, limit=_ALL)


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers have recorded of themselves."""

    by_node: dict[str, WorkerNotes]
    unreadable: tuple[str, ...]
    """Files that could not be read, as sentences."""


def notes(path: Path, *, generation: int | None = None, only: Container[str] | None = None) -> Notes:
    """Read the workers' own files: 2 to 3 ms each.

    Args:
        path: the recovery path.
        generation: activity in this one only; None: in all.
        only: of these nodes; None: of all.
    """
    found: dict[str, WorkerNotes] = {}
    unreadable: list[str] = []
    for node_id in stored_workers(path):
        if only is not None and node_id not in only:
            continue
        try:
            found[node_id] = read_notes(path, node_id, generation=generation)
        except RecoveryError as error:
            unreadable.append(str(error))
    return Notes(by_node=found, unreadable=tuple(unreadable))


def progress(stored: Stored) -> tuple[tuple[StepRecord, ...], tuple[str, ...]]:
    """How far each worker has recorded that it is, with a heartbeat or a save; and what could not be read, as sentences."""
    read_now = notes(stored.path)
    incarnations = {node.node_id: node.incarnation for node in stored.nodes}
    found = [
        of_node[0].record
        for node_id, noted in read_now.by_node.items()
        if (of_node := newest_first(node_id, noted, incarnations.get(NodeId(node_id), Incarnation(1))))
    ]
    return tuple(sorted(found, key=lambda step: (step.rank, step.node_id))), read_now.unreadable


def newest_first(node_id: str, noted: WorkerNotes, incarnation: Incarnation) -> list[Written[StepRecord]]:
    """How far a worker has recorded that it is: each record, the one that came furthest first."""
    found = [Written(_of_save(node_id, save.record, incarnation), save.wall_ms) for save in noted.checkpoints]
    found += [noted.step] if noted.step is not None else []
    return sorted(
        found,
        key=lambda written: (written.record.run, written.record.generation, written.record.step),
        reverse=True,
    )


def _of_save(node_id: str, saved: CheckpointRecord, incarnation: Incarnation) -> StepRecord:
    return StepRecord(
        node_id=NodeId(node_id),
        rank=saved.rank,
        run=saved.run,
        generation=saved.generation,
        incarnation=incarnation,
        step=saved.step,
        epoch=saved.epoch,
        step_in_epoch=saved.step_in_epoch,
    )
