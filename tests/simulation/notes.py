"""A node's own store as a model: the rows that say what its job was."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.core.messages import Past
from recovery.core.policy.rebuild import past_of
from recovery.core.records import CheckpointRecord, GenerationRecord, JobRecord, NodeRecord, Record


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

    def past_beside(self, job: str) -> Past | None:
        """What is noted of another job than this one."""
        if self.job is None or self.node is None or self.job.job == job:
            return None
        return past_of(self.job, self.node, self.generations.values(), self.saved.values())
