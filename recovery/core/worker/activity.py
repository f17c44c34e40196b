"""What a worker notes of its own training, so that people can see later when each rank last did anything.

A stretch is a time without a pause: from a rank's first step in a generation, or its first note after a pause, to its newest note. The
scheduler sees neither a pause nor the last seconds before its own death, and cannot report what it does not see.
"""

from __future__ import annotations

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.records import ActivityRecord

LATE_MS = 1_000
"""A note that is later than the longest heartbeat by this means that the process was paused. A busy process is late by tens of
milliseconds; at twice it a rank that was paused for two heartbeats would be shown as one that trained."""


class TrainingIntervals:
    """The stretches of one process, one generation after the other."""

    def __init__(self, *, heartbeat_ms: int) -> None:
        """Nothing was noted yet.

        Args:
            heartbeat_ms: the longest time between two notes.
        """
        self._due_ms = heartbeat_ms + LATE_MS
        """Within which the next note follows if the rank was not paused."""
        self._generation = Generation(0)
        """The one that the newest note is of; 0: there is none."""
        self._number = 0
        """Of the newest piece in its generation: 1, 2, 3, ..."""
        self._notes = self._notes_max = 0
        """How many notes are in the newest piece, and how many it may hold."""
        self._begun_ms = self._noted_ms = 0
        """When the newest piece began, and when its newest note was made; on the monotonic clock."""
        self._first_step = self._step = 0
        """The newest step at the one and at the other."""

    def note(self, generation: Generation, step: int, now_ms: int) -> None:
        """The rank trains and has come so far.

        A stretch is written in pieces of 1, 2, 4, 8, ... notes: between the ends of a piece steps are taken to follow each other evenly,
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
