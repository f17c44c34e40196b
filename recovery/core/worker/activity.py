"""What a worker notes of its own training, so that people can be told later when each rank last did anything.

A stretch is a time without a pause: from a rank's first step in a generation, or its first note after it stood still, to its newest
note. The scheduler sees neither a standstill nor the last seconds before its own death, and what it does not see it cannot tell.
"""

from __future__ import annotations

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.records import ActivityRecord

LATE_MS = 1_000
"""A note that is later than the longest heartbeat by this tells of a standstill. A busy process is late by tens of milliseconds; at
twice it a rank that stood still for two heartbeats would be told as one that trained."""


class Stretches:
    """The stretches of one process, one generation after the other."""

    def __init__(self, *, heartbeat_ms: int) -> None:
        """Nothing was noted yet.

        Args:
            heartbeat_ms: the longest time between two notes.
        """
        self._due_ms = heartbeat_ms + LATE_MS
        self._generation = Generation(0)
        self._number = self._notes = self._notes_max = 0
        self._begun_ms = self._noted_ms = 0
        self._first_step = self._step = 0

    def note(self, generation: Generation, step: int, now_ms: int) -> None:
        """The rank trains and has come so far.

        A stretch is told in pieces of 1, 2, 4, 8, ... notes: between the ends of a piece steps are taken to follow each other evenly,
        which shall be true near the beginning, where steps are done again.
        """
        if generation != self._generation:
            self._generation, self._number, self._notes_max = generation, 0, 1
            self._open(step, now_ms)
        elif now_ms - self._noted_ms > self._due_ms:
            self._notes_max = 1
            self._open(step, now_ms)
        elif self._notes == self._notes_max:
            self._notes_max *= 2
            self._open(self._step, self._noted_ms)
        self._notes, self._step, self._noted_ms = self._notes + 1, step, now_ms

    def _open(self, step: int, begun_ms: int) -> None:
        self._number, self._notes = self._number + 1, 0
        self._first_step, self._begun_ms = step, begun_ms

    def record(
        self, node_id: NodeId, rank: Rank, run: RunId, incarnation: Incarnation, *, stopped: bool
    ) -> ActivityRecord:
        """The newest piece as a row."""
        return ActivityRecord(
            node_id=node_id,
            run=run,
            generation=self._generation,
            number=self._number,
            rank=rank,
            incarnation=incarnation,
            first_step=self._first_step,
            step=self._step,
            lasting_ms=self._noted_ms - self._begun_ms,
            due_ms=0 if stopped else self._due_ms,
        )
