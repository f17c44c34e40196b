"""How far each rank is and whether its process runs, by the newest of all that is written.

That is the scheduler's rows, the rank's own records and its checkpoints. The scheduler's rows are as old as its last write, and
heartbeats are no writes. While no scheduler runs they say how it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from recovery import process_identity
from recovery.clock import instant
from recovery.core.records import JOB_STOPPED, NodeRecord, NodeState
from recovery.core.scheduler.job_states import ENDED
from recovery.core.scheduler.views import STARTING_AGAIN
from recovery.report.stored import Notes, Stored, notes
from recovery.report.tables import NODES
from recovery.store.lock import OwnerState, held_locks, owner_state
from recovery.store.paths import scheduler_path, worker_path
from recovery.store.reader import WorkerNotes

NOTES_READ = 64
"""Own files of ranks that a screen is worth. Twice that takes a quarter of a second; `recovery steps` reads all."""
NOT_RUNNING, UNHEARD = "not running", "unheard"
"""What the scheduler last called live or suspect, and no scheduler hears now. Of a job: it is not over, and no process of it runs; some may."""
STOPPED = "stopped"
"""A job that does not run, since somebody has asked for that."""


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    rank: int | None
    node_id: str
    state: str
    process: str
    step: int
    known_by: str
    noted: str | None
    reason: str
    data_ms: float | None = None
    compute_ms: float | None = None


class _KnownStep(NamedTuple):
    step: int
    known_by: str


class RunningProcesses:
    """Whose processes are seen to run, from this host."""

    def __init__(self, stored: Stored) -> None:
        """Look at the locks once."""
        self._stored, self._held = stored, held_locks()
        self._scheduler = owner_state(scheduler_path(stored.path), self._held)

    def process(self, node: NodeRecord) -> OwnerState:
        """Does its newest process run? It holds its own store's lock while it does, but for the time of its imports: the kernel knows it by its id."""
        by_lock = self._by_lock(node)
        has_ended = self._has_ended(node) if by_lock is not OwnerState.RUNNING else None
        if has_ended is None:
            return by_lock
        return OwnerState.NOT_RUNNING if has_ended else OwnerState.RUNNING

    def _by_lock(self, node: NodeRecord) -> OwnerState:
        return owner_state(worker_path(self._stored.path, node.node_id), self._held)

    def _has_ended(self, node: NodeRecord) -> bool | None:
        """None: nobody knows, from here."""
        identity = self._stored.processes.get(node.node_id)
        return process_identity.has_ended(identity, node.pid) if identity is not None else None

    def _is_starting_again(self, node: NodeRecord) -> bool:
        is_away = node.state in (NodeState.SUSPECT, NodeState.LOST)
        return is_away and self._by_lock(node) is OwnerState.NOT_RUNNING and self._has_ended(node) is False

    def state(self, node: NodeRecord) -> tuple[str, str]:
        """Its state in a word, and why: never live where no scheduler hears it."""
        if self._is_starting_again(node):
            return STARTING_AGAIN, starting_again(node.reason)
        was_there = node.state.is_here
        if self._scheduler is not OwnerState.NOT_RUNNING or not was_there:
            return node.state.value, node.reason
        if self.process(node) is OwnerState.NOT_RUNNING:
            return (
                NOT_RUNNING,
                f"its process has ended; it was {node.state.value} when the scheduler wrote last",
            )
        return UNHEARD, f"no scheduler runs to hear it; it was {node.state.value} when the last one wrote"

    @property
    def job_state(self) -> str:
        """The state of the job in a word: never one of training where no process of it runs."""
        job = self._stored.job
        if job.state in ENDED or self._scheduler is not OwnerState.NOT_RUNNING:
            return job.state.value
        if any(self.process(node) is not OwnerState.NOT_RUNNING for node in self._stored.workers):
            return UNHEARD
        return STOPPED if job.reason.startswith(JOB_STOPPED) else NOT_RUNNING

    def is_warming_up(self, node: NodeRecord) -> bool:
        """Is it heard, and cannot follow a plan yet?"""
        return node.node_id in self._stored.warming_up and self.state(node)[0] == NodeState.LIVE.value

    def rows(self, nodes: tuple[NodeRecord, ...]) -> list[dict[str, Any]]:
        """As rows of `NODES`."""
        found = []
        for node, row in zip(nodes, NODES.rows(nodes), strict=True):
            state, reason = self.state(node)
            found.append(
                {
                    **row,
                    "place": self._stored.slot_state(node).value,
                    "state": state,
                    "reason": reason,
                    "process": self.process(node).value,
                    "warming_up": self.is_warming_up(node),
                }
            )
        return found


def starting_again(reason: str) -> str:
    """Why a node is in the state `STARTING_AGAIN`."""
    return f"its process starts its program again ({reason})"


def progress_of_ranks(stored: Stored, processes: RunningProcesses, noted: Notes) -> tuple[RankProgress, ...]:
    """Every worker, by rank."""
    found = []
    for node in stored.workers:
        own = noted.by_node.get(str(node.node_id), WorkerNotes())
        newest = max(_known_steps(stored, node, own), key=lambda known: known.step)
        walls = [note.wall_ms for note in (own.step, *own.activity) if note is not None]
        state, reason = processes.state(node)
        found.append(
            RankProgress(
                rank=node.rank,
                node_id=str(node.node_id),
                state=state,
                process=processes.process(node).value,
                step=newest.step,
                known_by=newest.known_by,
                noted=instant(max(walls)) if walls else None,
                reason=reason,
            )
        )
    return tuple(found)


def notes_of_now(stored: Stored) -> Notes:
    """What the first ranks have recorded in the current generation. All ranks step together, and 1,000 files take seconds."""
    current = stored.current
    first = {str(node.node_id) for node in stored.workers[:NOTES_READ]}
    return notes(stored.path, generation=current.generation if current is not None else 0, only=first)


def newest_step(stored: Stored, ranks: tuple[RankProgress, ...]) -> int:
    """The highest step of the current generation that anybody is known to have applied."""
    current = stored.current
    ended_step = current.ended_step if current is not None else 0
    return max([ended_step, *(rank.step for rank in ranks)])


def stored_newest_step(stored: Stored) -> int:
    """The same, read now."""
    return newest_step(stored, progress_of_ranks(stored, RunningProcesses(stored), notes_of_now(stored)))


def _known_steps(stored: Stored, node: NodeRecord, own: WorkerNotes) -> list[_KnownStep]:
    """Every step of the current generation that it is known to have done; what it did in an earlier one was rolled back."""
    current = stored.current
    if current is None:
        return [_KnownStep(0, "")]
    of_it = (current.run, current.generation)
    found = [_KnownStep(current.step, "plan")]
    if node.generation == current.generation:
        found.append(_KnownStep(node.step, "scheduler"))
    noted = [note.record for note in (own.step, *own.activity) if note is not None]
    saves = [save.record for save in own.checkpoints]
    saves += [record for record in stored.checkpoints if record.rank == node.rank]
    found += [
        _KnownStep(record.step, "own notes") for record in noted if (record.run, record.generation) == of_it
    ]
    found += [
        _KnownStep(record.step, "checkpoint") for record in saves if (record.run, record.generation) == of_it
    ]
    return found
