"""Everything that one recovery path says about its job, read at once."""

from __future__ import annotations

from pathlib import Path

import msgspec

from recovery.core.ids import Incarnation, NodeId
from recovery.core.messages import Role
from recovery.core.records import (
    CheckpointRecord,
    GenerationRecord,
    JobRecord,
    NodeRecord,
    NodeState,
    RunRecord,
    StepRecord,
)
from recovery.errors import RecoveryError, RecoveryPathError, StoreLostError
from recovery.scheduler.rebuild import lost_in
from recovery.store.lock import owner_of
from recovery.store.reader import StoredEvent, read_events, read_scheduler, read_worker, stored_workers
from recovery.store.repository import scheduler_path

_ALL = 10_000_000
"""Events: more than any story has."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's state as of its last commit, and whether it lives."""

    path: Path
    job: JobRecord
    runs: tuple[RunRecord, ...]
    nodes: tuple[NodeRecord, ...]
    """By rank; those without one behind."""
    generations: tuple[GenerationRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    scheduler_pid: int | None
    """Of the process that has the store open on this host; None: none has."""

    @property
    def workers(self) -> tuple[NodeRecord, ...]:
        """The nodes of the world."""
        return tuple(node for node in self.nodes if node.role is Role.WORKER)

    @property
    def newest_step(self) -> int:
        """Highest step of the current generation that the scheduler knows of: reported, saved, or where it ended."""
        current = self.current
        if current is None:
            return 0
        of_it = (current.run, current.generation)
        saved = [one.step for one in self.checkpoints if (one.run, one.generation) == of_it]
        reported = [node.step for node in self.workers if node.generation == current.generation]
        return max(current.step, current.ended_step, *saved, *reported)

    @property
    def current(self) -> GenerationRecord | None:
        """The newest generation of the run."""
        of_run = [one for one in self.generations if one.run == self.job.run]
        return of_run[-1] if of_run else None

    @property
    def lost(self) -> tuple[NodeRecord, ...]:
        """Who is gone and may come back."""
        return tuple(node for node in self.nodes if node.state in (NodeState.LOST, NodeState.SUSPECT))


def read(path: Path) -> Stored:
    """Read a recovery path.

    Raises:
        RecoveryPathError: there is no store, or no job in it yet.
        StoreLostError: there is a job, and its scheduler's store is not there.
        StoreError: it cannot be used as it is; see its classes.
    """
    lost = lost_in(path)
    if lost is not None:
        raise StoreLostError(path=str(path), found=lost.told)
    owner = owner_of(scheduler_path(path))
    state = read_scheduler(path)
    if state.job is None:
        raise RecoveryPathError(
            path=str(path), reason="holds a store without a job", next_step="Start the job's scheduler first."
        )
    return Stored(
        path=path,
        job=state.job,
        runs=state.runs,
        nodes=tuple(sorted(state.nodes, key=lambda node: (node.rank is None, node.rank or 0, node.node_id))),
        generations=state.generations,
        checkpoints=state.checkpoints,
        scheduler_pid=owner.pid if owner is not None else None,
    )


def newest_events(path: Path, count: int) -> tuple[StoredEvent, ...]:
    """The last so many lines of the story. Errors as of `read`."""
    return read_events(path, limit=count, newest=True)


def story(path: Path) -> tuple[StoredEvent, ...]:
    """Every line of it, oldest first. Errors as of `read`."""
    return read_events(path, limit=_ALL)


def progress(stored: Stored) -> tuple[tuple[StepRecord, ...], tuple[str, ...]]:
    """How far each worker has noted that it is, with a heartbeat or with a save; and what could not be read, as sentences."""
    found: list[StepRecord] = []
    unreadable: list[str] = []
    lives = {node.node_id: node.incarnation for node in stored.nodes}
    for node_id in stored_workers(stored.path):
        try:
            state = read_worker(stored.path, node_id, accept_without_wal=True)
        except RecoveryError as error:
            unreadable.append(str(error))
            continue
        life = lives.get(NodeId(node_id), Incarnation(1))
        noted = [_of_save(node_id, one, life) for one in state.checkpoints]
        noted += [state.step] if state.step is not None else []
        if noted:
            found.append(max(noted, key=lambda one: (one.run, one.generation, one.step)))
    return tuple(sorted(found, key=lambda step: (step.rank, step.node_id))), tuple(unreadable)


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
