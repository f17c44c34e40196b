"""How far this rank is: for the heartbeats, and written down for people. Recovery does not need it.

A worker notes its own training, so that people can see later when each rank last did anything. A stretch is a time without a pause: from a rank's
first step in a generation, or its first note after a pause, to its newest note. The scheduler sees neither a pause nor the last seconds before its own
death, and cannot report what it does not see.
"""

from __future__ import annotations

import msgspec

from recovery.core.effects import Persist
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import Admitted, Heartbeat, HeartbeatAck
from recovery.core.records import ActivityRecord, StepRecord
from recovery.core.worker.effects import Send
from recovery.core.worker.stimuli import StepsDone

LATE_MS = 1_000
"""A note that is later than the longest heartbeat by this means that the process was paused. A busy process is late by tens of
milliseconds; at twice it a rank that was paused for two heartbeats would be shown as one that trained."""


class TrainingIntervals:
    """The stretches of one process, one generation after the other."""

    def __init__(self, *, heartbeat_ms: int) -> None:
        """Nothing was noted yet. `heartbeat_ms`: the longest time between two notes."""
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


class Progress:
    """The newest step of one process, and the first one of each generation."""

    def __init__(self, node_id: NodeId, *, heartbeat_ms: int) -> None:
        """No step was applied yet. `heartbeat_ms`: the longest time between two notes."""
        self._node_id = node_id
        self.newest = StepsDone(generation=Generation(0), step=0, epoch=0, step_in_epoch=0)
        """What the main thread has applied last; generation 0: nothing."""
        self._begun_in = Generation(0)
        """The newest generation whose first step was applied; 0: none."""
        self._stretches = TrainingIntervals(heartbeat_ms=heartbeat_ms)
        """The times in which it trained without a pause."""

    @property
    def step(self) -> int:
        """The newest step that was applied; 0: none."""
        return self.newest.step

    def has_begun(self, generation: Generation) -> bool:
        """Was a step of this generation applied? Then its world has met."""
        return self._begun_in == generation

    def applied(self, done: StepsDone) -> None:
        """The main thread has come so far."""
        self.newest = done

    def begin(self, generation: Generation) -> None:
        """The first step of a generation was applied."""
        self._begun_in = generation

    def stopped(self, generation: Generation, step: int) -> None:
        """The main thread has left the training function behind this step."""
        self.newest = msgspec.structs.replace(
            self.newest, generation=generation, step=step, epoch=0, step_in_epoch=0, phase=None
        )

    def note(
        self,
        rank: Rank | None,
        admitted: Admitted | None,
        now_ms: int,
        *,
        trains: bool,
        stopped: bool = False,
    ) -> list[Persist]:
        """Write how far this rank is: with its first step, once per heartbeat and when it stops.

        Out of training, or with its data plane broken, this is not a time in which it trained. Without a rank there is nothing to write yet.
        """
        if admitted is None or rank is None or not self.newest.generation:
            return []
        record = StepRecord(
            node_id=self._node_id,
            rank=rank,
            run=admitted.run,
            generation=self.newest.generation,
            incarnation=admitted.incarnation,
            step=self.newest.step,
            epoch=self.newest.epoch,
            step_in_epoch=self.newest.step_in_epoch,
        )
        if not trains or not self.has_begun(record.generation):
            return [Persist((record,))]
        self._stretches.note(record.generation, record.step, now_ms)
        lasted = self._stretches.record(
            record.node_id, record.rank, record.run, record.incarnation, stopped=stopped
        )
        return [Persist((record, lasted))]


class Heartbeats:
    """Numbers the heartbeats of one process."""

    def __init__(self) -> None:
        """None was sent yet."""
        self._sent = 0
        """How many were sent: the number of the newest."""
        self._confirming = 0
        """Number of the heartbeat whose answer confirms this incarnation after a pause of the process; 0: none is waited for."""

    @property
    def awaits_confirmation(self) -> bool:
        """Is this process waiting to hear whether its place is still its own?"""
        return self._confirming > 0

    def ask_for_confirmation(self) -> None:
        """The process was paused: the answer to the next heartbeat tells whether its place is still its own."""
        self._confirming = self._sent + 1

    def send(self, newest: StepsDone) -> Send:
        """Send the next one."""
        self._sent += 1
        if self._confirming:
            self._confirming = self._sent
        return Send(
            Heartbeat(
                sequence=self._sent,
                generation=newest.generation,
                step=newest.step,
                epoch=newest.epoch,
                total_steps=newest.total_steps,
                loss=newest.loss,
                phase=newest.phase,
            )
        )

    def confirms(self, ack: HeartbeatAck) -> bool:
        """Is this the answer that was waited for? An answer to an older heartbeat says nothing about the time since."""
        if not self._confirming or ack.sequence < self._confirming:
            return False
        self._confirming = 0
        return True

    def check(self) -> None:
        """Assert what is always true of the heartbeats."""
        assert self._confirming <= self._sent + 1, "the heartbeat that confirms is the newest or the next one"
