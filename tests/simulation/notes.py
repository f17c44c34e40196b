"""A node's own store as a model: the rows that say what its job was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from recovery.core.ids import NodeId
from recovery.core.messages import JobHistory
from recovery.core.policy.rebuild import past_of
from recovery.core.records import CheckpointRecord, GenerationRecord, JobRecord, NodeRecord, Record
from recovery.core.worker.effects import FindCheckpoints
from recovery.core.worker.job_history import joined, of_slot

if TYPE_CHECKING:
    from tests.simulation.process import Process


class Notes:
    """Rows by key. What is written is there at once: a process that dies before has reported and saved nothing."""

    def __init__(self) -> None:
        self.job: JobRecord | None = None
        self.node: NodeRecord | None = None
        self.generations: dict[tuple[int, int], GenerationRecord] = {}
        self.saved: dict[tuple[int, int], CheckpointRecord] = {}
        self.places: set[str] = set()
        """Where files of a rank lie that was taken over, beside the node's own directory."""

    def write(self, records: Iterable[Record]) -> None:
        """Keep what a later scheduler may ask for."""
        for record in records:
            if isinstance(record, JobRecord):
                self.job = record
            elif isinstance(record, NodeRecord):
                self.node = record
            elif isinstance(record, GenerationRecord):
                self.generations[record.run, record.generation] = record
            elif isinstance(record, CheckpointRecord):
                self.saved[record.run, record.step] = record

    def past_beside(self, job: str) -> JobHistory | None:
        """What is noted of another job than this one."""
        if self.job is None or self.node is None or self.job.job == job:
            return None
        return past_of(self.job, self.node, self.generations.values(), self.saved.values())


def past_known(process: Process, find: FindCheckpoints) -> JobHistory | None:
    """What a process, its node's own store and the stores of the other ids of its place know of another job."""
    notes = process.world.notes[process.name]
    past = notes.past_beside(find.job)
    if find.past is not None:
        past = joined(find.past, past)
    if past is None and notes.job is not None:
        return None
    pasts = {
        NodeId(name): process.world.notes[name].past_beside(find.job)
        for name in process.world.names_of_place(process.name, str(process.identity.replaces))
        if name != process.name
    }
    return of_slot(past, {name: one for name, one in pasts.items() if one is not None})
